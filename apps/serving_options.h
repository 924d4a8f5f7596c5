// What a server's steps are made for, on the command line: of `serve`, and of `warm`, which makes
// them ahead.
#pragma once

#include <cstddef>
#include <string>

#include "stretto/engine/serving.h"

namespace CLI {
class App;
}

namespace stretto {

struct StepOptions {
  ServingOptions serving;
  std::string kv_memory = "0";
};

void add_step_options(CLI::App* command, StepOptions& options);
// After parsing. UserError for bytes that are none.
void read_step_options(StepOptions& options);

// A whole number of bytes, or with KiB, MiB, GiB or TiB behind it. UserError naming the option.
std::size_t bytes_of(const std::string& option, const std::string& text);

}  // namespace stretto
