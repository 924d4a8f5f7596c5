// A device's timer against the host's clock (Recorder::now_ns), so that events of several GPUs can
// be drawn on one axis: the host asks, a kernel of one thread answers through host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {

// The two showed the same moment, give or take error_ns.
struct ClockReading {
  std::int64_t host_ns = 0, device_ns = 0, error_ns = 0;
};

// Host time of a device's, between two readings of it (Cristian, Probabilistic clock
// synchronization, 1989): the error is at most the larger of theirs.
std::int64_t host_time(std::int64_t device_ns, const ClockReading& first, const ClockReading& last);

class DeviceClock {
 public:
  // Errors of compile_cuda.
  explicit DeviceClock(const cuda::Device& device);

  // The best of many questions, with the device idle. DeviceError when it does not answer.
  ClockReading read(const cuda::Stream& stream) const;

 private:
  std::unique_ptr<cuda::Kernel> kernel_;
  std::unique_ptr<cuda::HostMappedMemory> words_;  // the number asked, then the answers
};

}  // namespace stretto
