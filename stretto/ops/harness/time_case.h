// Times launches of an OpCase on a world of CPU ranks: what `stretto bench` and `stretto trace`
// run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "stretto/ops/harness/op_case.h"
#include "stretto/runtime/recorder.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct TimeOptions {
  int warmups = 3;
  int samples = 20;
  std::function<void(const Recorder&)> recorded;  // when set, gets what the samples did
  // Ranks to run on, as many as the program has; none: threads of this process.
  std::shared_ptr<World> world;
};

// Milliseconds of each sample: from a barrier to the end of the slowest rank's launch. `recorded`
// gets the ranks of this process.
std::vector<double> time_case(const OpCase& op_case, const TimeOptions& options = {});

// A case without a reference, for a program of the user's: random inputs, tables filled with their
// smallest permitted values (partitions: into even parts), extents at their bounds.
OpCase random_case(const Program& program, std::uint64_t seed);
// What such a case holds in a table of integers.
Values table_values(const Program& program, std::size_t tensor_idx);

}  // namespace stretto
