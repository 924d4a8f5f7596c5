// What allocations that a device refuses end with.
#pragma once

#include <cstddef>
#include <string>

#include "stretto/runtime/cuda/device.h"

namespace stretto::cuda {

// How much is asked for, and what the device has left.
std::string no_memory_text(const DeviceProperties& device, std::size_t bytes,
                           const MemoryInfo& memory);

// DeviceError, of too little memory with the text above, where the driver did not say CUDA_SUCCESS
// to an allocation of so many bytes.
void check_allocated(CUresult result, const Device& device, std::size_t bytes);

}  // namespace stretto::cuda
