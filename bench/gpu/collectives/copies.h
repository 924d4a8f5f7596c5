// Whether copy engines get on while a kernel holds every SM, which the protocol between kernels and
// queues rests on (gpu/engine_queues.h), and what that costs them; and while many streams of the
// other GPU wait, as queues there do for gates. Two GPUs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct CopiesOptions {
  std::string only;  // copies whose text contains this
  int samples = 60;
};

struct CopiesResult {
  std::string copy;             // "8 bytes from a peer"
  bool needed = true;           // the protocol rests on it: else it may wait for an SM
  std::vector<double> idle_us;  // of each, on the device; nothing else runs there
  std::vector<double> held_us;  // while the kernel runs; empty where copies wait for its end
  std::vector<double> beside_waits_us;  // while the peer's streams wait; empty where copies do too
  std::string error;                    // where a needed one waits for the kernel

  std::string to_string() const;  // a line
  Json to_json() const;
};

// Calls `done` after each kind of copy, on rank 0's GPU.
void measure_copies(GpuWorld& world, const CopiesOptions& options,
                    const std::function<void(const CopiesResult&)>& done);

}  // namespace stretto::bench
