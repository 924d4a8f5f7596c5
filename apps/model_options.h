// What the commands that run a model have in common on the command line.
#pragma once

#include <string>

#include "apps/launcher.h"
#include "stretto/engine/generate.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stretto {

struct ModelOptions {
  std::string model, dtype = "auto", rope_frequencies = "exact";
  std::string device = "cpu", load_format = "auto", kv_dtype = "auto", weights = "auto";
  std::string fused_experts = "auto";
  int tp = 1, ep = 1, dp = 1;
  bool sequence_parallel = false;
  LauncherOptions launcher;

  int num_ranks() const { return dp * tp; }

  Target target() const { return device == "cuda" ? Target::kCuda : Target::kCpu; }
};

void add_model_options(CLI::App* command, ModelOptions& options);

// --fused-experts, and what its value says. UserError where a model without experts is to have it
// on.
CLI::Option* add_fused_experts_option(CLI::App* command, std::string& value);
FusedExperts fused_experts(const std::string& value);
void check_has_experts(const ModelConfig& config, const std::string& fused_experts);

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
