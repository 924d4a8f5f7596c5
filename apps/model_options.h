// What the commands that run a model have in common on the command line.
#pragma once

#include <string>

#include "stretto/engine/generate.h"

namespace CLI {
class App;
}

namespace stretto {

struct ModelOptions {
  std::string model, dtype = "auto", rope_frequencies = "exact";
  std::string device = "cpu", load_format = "auto";
  int tp = 1;

  Target target() const { return device == "cuda" ? Target::kCuda : Target::kCpu; }
};

void add_model_options(CLI::App* command, ModelOptions& options);

// The model directory, opened, checked and set up as the options ask. UserError as ModelFiles and
// set_rope_frequencies.
ModelFiles open_model(const ModelOptions& options);

}  // namespace stretto
