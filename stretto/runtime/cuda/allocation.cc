#include "stretto/runtime/cuda/allocation.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto::cuda {

std::string no_memory_text(const DeviceProperties& device, std::size_t bytes,
                           const MemoryInfo& memory) {
  auto gib = [](std::size_t n) { return static_cast<double>(n) / (1ull << 30); };
  return fmt::format(
      "GPU {} ({}) has too little memory: {:.2f} GiB are asked for ({} bytes), {:.2f} of {:.2f} "
      "GiB are free",
      device.ordinal, device.name, gib(bytes), bytes, gib(memory.free_bytes),
      gib(memory.total_bytes));
}

void check_allocated(CUresult result, const Device& device, std::size_t bytes) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw DeviceError(no_memory_text(device.properties(), bytes, device.memory()));
  }
  check(result, fmt::format("allocating {} bytes on GPU {}", bytes, device.properties().ordinal));
}

}  // namespace stretto::cuda
