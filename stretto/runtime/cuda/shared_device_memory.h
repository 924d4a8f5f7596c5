// Memory of one device that several processes address: one makes it and passes a file descriptor
// of it on, the others map it for their own device. It goes with the last process that has it,
// however that process ends. gpu/gpu_world.h makes symmetric memory of it.
//
// CUDA Driver API, "Virtual Memory Management".
#pragma once

#include <cstddef>
#include <memory>

#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/processes/fd.h"

namespace stretto::cuda {

class SharedDeviceMemory {
 public:
  // Uninitialised memory of `device`, at least one byte of it; the driver gives whole pages of some
  // megabytes.
  SharedDeviceMemory(const Device& device, std::size_t bytes);
  // What another process has made with as many bytes, mapped for `device`, which must be able to
  // address the device where it lies. DeviceError where the descriptor is something else.
  SharedDeviceMemory(const Device& device, const Fd& memory, std::size_t bytes);
  // With no work under way on `device` that touches it.
  ~SharedDeviceMemory();
  SharedDeviceMemory(const SharedDeviceMemory&) = delete;
  SharedDeviceMemory& operator=(const SharedDeviceMemory&) = delete;

  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  Fd descriptor() const;  // a new one

 private:
  void map();
  void release() const;

  std::shared_ptr<const PrimaryContext> context_;
  std::size_t bytes_, mapped_bytes_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false, is_mapped_ = false;
  CUdeviceptr address_ = 0;
};

}  // namespace stretto::cuda
