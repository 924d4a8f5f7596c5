// Measuring on a GPU so that the figure means something: clocks warmed up, buffers rotated past the
// L2 cache, two contestants in turn call by call, work enqueued ahead of the device so that the
// host's time does not count.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "stretto/base/statistics.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto {

// Enqueues one call on the stream that is timed, working on buffer set `set`.
using GpuCall = std::function<void(int set)>;

struct GpuTimeOptions {
  int num_sets = 1;        // buffer sets, used in turn: num_buffer_sets()
  double warmup_ms = 300;  // of the contestants' own work; each runs once at least
  int samples = 60;        // calls of each contestant that are timed
  // Each contestant is captured with one call per set, and a sample is one replay: its time is per
  // call.
  bool graph = false;
  // Nothing is timed: each contestant is called once, and once more between marks that profilers
  // wait for (ncu --profile-from-start off). Its one sample is what the profiler left of the time.
  bool profile = false;
};

// How many sets of `bytes_per_set` take more than twice the L2 cache; odd, so that two contestants
// in turn both work on all of them.
int num_buffer_sets(std::size_t bytes_per_set, std::size_t l2_bytes);

// Milliseconds of the device for each call of each contestant, [contestant][sample]; sample i of
// all were taken one after the other.
std::vector<std::vector<double>> time_gpu(const cuda::Device& device, const cuda::Stream& stream,
                                          const std::vector<GpuCall>& contestants,
                                          const GpuTimeOptions& options);

}  // namespace stretto
