// How long the host takes to enqueue a launch, and how many calls of the driver that is. Runs
// without GPUs, too: on simulated ones, with the calls swallowed, what is left is the host's own
// work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct EnqueueOptions {
  std::string only;      // operators whose text contains this
  int samples = 50;      // each of kLaunches launches, which the GPUs then finish
  bool swallow = false;  // launches enqueue nothing
  static constexpr int kLaunches = 8;
};

// Of a launch on one rank.
struct EnqueueWay {
  double calls = 0;                       // of the driver, but for the choice of the device
  std::map<std::string, double> by_name;  // of which
  std::vector<double> us;                 // samples
};

struct EnqueueResult {
  std::string op;
  EnqueueWay one_by_one, replayed;  // Executable::replay_copies
  std::vector<double> new_us;       // a launch on memory that it has not had before

  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

// A product, and the operators of several ranks, the default config of each.
void measure_enqueueing(GpuWorld& world, const EnqueueOptions& options,
                        const std::function<void(const EnqueueResult&)>& done);

}  // namespace stretto::bench
