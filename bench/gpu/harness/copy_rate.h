// What a GPU's memory gives in practice, for what is measured in shares of it.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stretto/base/statistics.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

// Bytes read and written per second by a copy within the GPU: what memory gives in practice.
inline double copy_bandwidth(const GpuWorld& world) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const cuda::Device& device = world.device(0);
  const cuda::Stream& stream = world.stream(0);
  cuda::DeviceMemory from(device, kBytes), to(device, kBytes);
  stream.fill_bytes(from.address(), 1, kBytes);
  cuda::Event begin(device, cuda::Event::Timing::kOn), end(device, cuda::Event::Timing::kOn);
  std::vector<double> ms;
  for (int i = 0; i < 12; ++i) {
    stream.record(begin);
    stream.copy(to.address(), from.address(), kBytes);
    stream.record(end);
    stream.synchronize();
    ms.push_back(cuda::elapsed_ms(begin, end));
  }
  return 2.0 * static_cast<double>(kBytes) / (median(std::move(ms)) * 1e-3);
}

}  // namespace stretto::bench
