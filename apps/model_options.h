// What the commands that run a model have in common on the command line.
#pragma once

#include <string>

#include "apps/launcher.h"
#include "stretto/engine/generate.h"

namespace CLI {
class App;
}

namespace stretto {

struct ModelOptions {
  std::string model, dtype = "auto", rope_frequencies = "exact";
  std::string device = "cpu", load_format = "auto", kv_dtype = "auto", weights = "auto";
  int tp = 1, ep = 1, dp = 1;
  bool sequence_parallel = false;
  LauncherOptions launcher;

  int num_ranks() const { return dp * tp; }

  Target target() const { return device == "cuda" ? Target::kCuda : Target::kCpu; }
};

void add_model_options(CLI::App* command, ModelOptions& options);

// In place of "auto": cuda where the driver shows a GPU, else cpu. To be called before anything
// asks for target().
void choose_device(ModelOptions& options);

// What a model directory's files tell differently, on standard error.
void print_warnings(const Warnings& warnings);

// True where the command has been run by processes of its own (apps/launcher.h).
bool ran_as_processes(const ModelOptions& options);

// Where the model is to run; with processes, as this rank of them.
EngineOptions engine_options(const ModelOptions& options, const ModelFiles& files,
                             bool record = false);

// The model directory, opened, checked and set up as the options ask. UserError as ModelFiles,
// set_rope_frequencies and check_groups.
ModelFiles open_model(const ModelOptions& options);

}  // namespace stretto
