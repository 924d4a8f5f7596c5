// A GPU, what it can do, and memory on it. Streams and events are in stream.h, code in module.h.
// Every object is move-only, keeps its device's primary context alive and throws DeviceError where
// the driver refuses.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "stretto/runtime/cuda/owned.h"

namespace stretto::cuda {

struct DeviceProperties {
  int ordinal = 0;
  std::string name;
  std::string pci;  // "0000:1b:00"
  int cc_major = 0;
  int cc_minor = 0;
  int num_sms = 0;
  std::size_t memory_bytes = 0;
  int l2_bytes = 0;
  int shared_per_block_bytes = 0;  // with opt-in (Kernel::set_max_dynamic_shared)
  int shared_per_sm_bytes = 0;
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  int clock_khz = 0;         // SMs, typical
  int memory_clock_khz = 0;  // peak
  int memory_bus_bits = 0;
  bool cooperative_launch = false;
  bool clusters = false;
  bool tensor_maps = false;
  bool stream_memory_operations = false;  // 64-bit waits and writes of a stream

  std::string to_string() const;  // one line
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

class Device {
 public:
  // DeviceError unless 0 <= ordinal < num_devices().
  explicit Device(int ordinal);
  Device(Device&&) = default;
  Device& operator=(Device&&) = default;

  const DeviceProperties& properties() const { return properties_; }
  const std::shared_ptr<const PrimaryContext>& context() const { return context_; }
  void make_current() const { context_->make_current(); }

  MemoryInfo memory() const;
  bool can_access(const Device& peer) const;          // loads and stores over NVLink or PCIe
  bool has_native_atomics(const Device& peer) const;  // and atomics
  // Kernels and copies of this device may then address `peer`'s memory. May be repeated.
  void enable_peer_access(const Device& peer) const;
  void synchronize() const;  // waits for every stream, without a deadline

 private:
  std::shared_ptr<const PrimaryContext> context_;
  DeviceProperties properties_;
};

class SharedDeviceMemory;

// Uninitialised memory on one device, aligned to at least 256 bytes; null where there are no bytes.
class DeviceMemory {
 public:
  DeviceMemory(const Device& device, std::size_t bytes);
  // Memory that processes share (shared_device_memory.h), of this device or another's.
  explicit DeviceMemory(std::shared_ptr<const SharedDeviceMemory> shared);

  CUdeviceptr address() const;
  std::size_t bytes() const { return bytes_; }

 private:
  Owned<CUdeviceptr, &Driver::mem_free> memory_;
  std::shared_ptr<const SharedDeviceMemory> shared_;  // instead
  std::size_t bytes_;
};

// Page-locked host memory that every device can address, zeroed.
class HostMappedMemory {
 public:
  HostMappedMemory(const Device& device, std::size_t bytes);

  void* host() const { return memory_.get(); }
  CUdeviceptr address() const { return address_; }  // as kernels see it
  std::size_t bytes() const { return bytes_; }

 private:
  Owned<void*, &Driver::mem_free_host> memory_;
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

// Makes whole pages of this process, which stay its own, such memory for as long as this lives.
class RegisteredHostMemory {
 public:
  RegisteredHostMemory(const Device& device, void* pages, std::size_t bytes);

  CUdeviceptr address() const { return address_; }  // as kernels see it

 private:
  Owned<void*, &Driver::mem_host_unregister> pages_;
  CUdeviceptr address_ = 0;
};

}  // namespace stretto::cuda
