// Measuring on several GPUs at once, as gpu_time.h does on one: every call is enqueued on the
// streams of all ranks by one thread, in a world of processes of each, ahead of the devices,
// contestants in turn.
#pragma once

#include <functional>
#include <vector>

#include "stretto/gpu/gpu_world.h"

namespace stretto {

// Enqueues one call on the stream of every local rank of the world, working on buffer set `set`.
using RanksCall = std::function<void(int set)>;

struct RanksTimeOptions {
  int num_sets = 1;  // buffer sets, used in turn
  double warmup_ms = 100;
  int samples = 40;         // of each contestant
  int calls_per_graph = 0;  // above 0: contestants are captured with so many calls, a sample is one
                            // replay, its time is per call
};

// Milliseconds per call, [contestant][sample], of the slowest rank; sample i of all were taken one
// after the other. Before each the ranks meet, so that none begins with what another still has to
// do. Collective in a world of processes, each of which gets the same times.
std::vector<std::vector<double>> time_ranks(const GpuWorld& world,
                                            const std::vector<RanksCall>& contestants,
                                            const RanksTimeOptions& options);

// Milliseconds of each of o.samples calls that follow others of their kind without a pause, from
// the one's end to the other's, as a program has them: the devices are as warm as they keep them,
// and nobody meets or holds calls back (calls_per_graph is not looked at). Collective as time_ranks
// is.
std::vector<double> time_in_a_row(const GpuWorld& world, const RanksCall& call,
                                  const RanksTimeOptions& options);

// Who takes less time of two that were launched in turn.
struct Contest {
  double ms = 0;    // of a call of `made`, the median
  bool won = true;  // less than the `fastest` so far by the whole interval, twice; none: empty
};
// In turn, since how fast a GPU is depends on what it has done before: while kernels are compiled
// it cools down, and by itself whoever comes first would be the fastest. Collective as time_ranks
// is.
Contest time_against(const GpuWorld& world, const RanksCall& made, const RanksCall& fastest,
                     const RanksTimeOptions& options);

}  // namespace stretto
