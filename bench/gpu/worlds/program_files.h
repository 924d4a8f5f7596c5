// Programs of files, such as those that Python wrote of what it launches, timed from one process
// per GPU, each by itself, launches in a row: what a call from elsewhere is compared with.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu/runs.h"

namespace stretto::bench {

// Starts `settings.world_size` processes of this command, or is one of them (`part`): times every
// program of `files`, which are in the IR's text form, and writes
// {"programs": [{"file", "ms": [sample, ..]}]} to settings.out, slowest rank. The exit status.
// UserError for a file that is no program or not of so many ranks.
int run_program_files(const Settings& settings, const std::vector<std::string>& files, bool part);

}  // namespace stretto::bench
