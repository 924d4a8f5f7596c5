// Times launches of a program on a world of CPU ranks, on random inputs and tables of what their
// contracts allow, with extents at their bounds: what `stretto bench` and `stretto trace` run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/runtime/recorder.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct CpuTimeOptions {
  int warmups = 3;
  int samples = 20;
  std::uint64_t seed = 1;                         // of the inputs
  std::function<void(const Recorder&)> recorded;  // when set, gets what the samples did
  // Ranks to run on, as many as the program has; none: threads of this process.
  std::shared_ptr<World> world;
  std::string waiver = {};  // ProveOptions::waiver, as the user says it
};

// Milliseconds of each sample: from a barrier to the end of the slowest rank's launch. `recorded`
// gets the ranks of this process. Errors of prove().
std::vector<double> time_on_cpu(const Program& program, const CpuTimeOptions& options = {});

}  // namespace stretto
