#include "stretto/runtime/cuda/device.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "stretto/runtime/cuda/allocation.h"
#include "stretto/runtime/cuda/shared_device_memory.h"

namespace stretto::cuda {
namespace {

int attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  check(driver().device_get_attribute(&value, which, device),
        fmt::format("cuDeviceGetAttribute({})", int{which}));
  return value;
}

DeviceProperties read_properties(int ordinal, CUdevice device) {
  auto value = [&](CUdevice_attribute which) { return attribute(device, which); };
  DeviceProperties p;
  p.ordinal = ordinal;
  char name[256] = {};
  check(driver().device_get_name(name, sizeof name - 1, device), "cuDeviceGetName");
  p.name = name;
  p.pci =
      fmt::format("{:04x}:{:02x}:{:02x}", value(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                  value(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), value(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
  p.cc_major = value(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  p.cc_minor = value(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p.num_sms = value(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  check(driver().device_total_mem(&p.memory_bytes, device), "cuDeviceTotalMem");
  p.l2_bytes = value(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  p.shared_per_block_bytes = value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  p.shared_per_sm_bytes = value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  p.registers_per_sm = value(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  p.threads_per_sm = value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  p.clock_khz = value(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  p.memory_clock_khz = value(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  p.memory_bus_bits = value(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  p.cooperative_launch = value(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0;
  p.clusters = value(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH) != 0;
  p.tensor_maps = value(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED) != 0;
  p.stream_memory_operations = value(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  return p;
}

CUdeviceptr allocate(const Device& device, std::size_t bytes) {
  if (bytes == 0) return 0;
  ContextScope scope(*device.context());
  CUdeviceptr address = 0;
  check_allocated(driver().mem_alloc(&address, bytes), device, bytes);
  return address;
}

void* register_pages(const Device& device, void* pages, std::size_t bytes) {
  ContextScope scope(*device.context());
  check(driver().mem_host_register(pages, bytes,
                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        fmt::format("letting GPU {} address {} bytes of the host's memory",
                    device.properties().ordinal, bytes));
  return pages;
}

void* allocate_host(const Device& device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  ContextScope scope(*device.context());
  void* memory = nullptr;
  check(
      driver().mem_host_alloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      fmt::format("allocating {} bytes of page-locked host memory", bytes));
  std::memset(memory, 0, bytes);
  return memory;
}

}  // namespace

std::string DeviceProperties::to_string() const {
  return fmt::format("GPU {}: {} ({}), sm_{}{}, {} SMs, {:.1f} GiB", ordinal, name, pci, cc_major,
                     cc_minor, num_sms, static_cast<double>(memory_bytes) / (1ull << 30));
}

Device::Device(int ordinal)
    : context_(std::make_shared<const PrimaryContext>(ordinal)),
      properties_(read_properties(ordinal, context_->device())) {}

MemoryInfo Device::memory() const {
  ContextScope scope(*context_);
  MemoryInfo info;
  check(driver().mem_get_info(&info.free_bytes, &info.total_bytes), "cuMemGetInfo");
  return info;
}

bool Device::can_access(const Device& peer) const {
  if (peer.context_->device() == context_->device()) return true;
  int can = 0;
  check(driver().device_can_access_peer(&can, context_->device(), peer.context_->device()),
        "cuDeviceCanAccessPeer");
  return can != 0;
}

bool Device::has_native_atomics(const Device& peer) const {
  if (peer.context_->device() == context_->device()) return true;
  int has = 0;
  check(driver().device_get_p2p_attribute(&has, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                          context_->device(), peer.context_->device()),
        "cuDeviceGetP2PAttribute");
  return has != 0;
}

void Device::enable_peer_access(const Device& peer) const {
  if (peer.context_->device() == context_->device()) return;
  ContextScope scope(*context_);
  CUresult result = driver().ctx_enable_peer_access(peer.context_->handle(), 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return;
  check(result, fmt::format("letting GPU {} address the memory of GPU {}", properties_.ordinal,
                            peer.properties_.ordinal));
}

void Device::synchronize() const {
  ContextScope scope(*context_);
  check(driver().ctx_synchronize(), fmt::format("waiting for GPU {}", properties_.ordinal));
}

DeviceMemory::DeviceMemory(const Device& device, std::size_t bytes)
    : memory_(device.context(), allocate(device, bytes)), bytes_(bytes) {}

DeviceMemory::DeviceMemory(std::shared_ptr<const SharedDeviceMemory> shared)
    : memory_(nullptr, 0), shared_(std::move(shared)), bytes_(shared_->bytes()) {}

CUdeviceptr DeviceMemory::address() const {
  return shared_ == nullptr ? memory_.get() : shared_->address();
}

HostMappedMemory::HostMappedMemory(const Device& device, std::size_t bytes)
    : memory_(device.context(), allocate_host(device, bytes)), bytes_(bytes) {
  if (bytes == 0) return;
  ContextScope scope(*device.context());
  check(driver().mem_host_get_device_pointer(&address_, memory_.get(), 0),
        "cuMemHostGetDevicePointer");
}

RegisteredHostMemory::RegisteredHostMemory(const Device& device, void* pages, std::size_t bytes)
    : pages_(device.context(), register_pages(device, pages, bytes)) {
  ContextScope scope(*device.context());
  check(driver().mem_host_get_device_pointer(&address_, pages, 0), "cuMemHostGetDevicePointer");
}

}  // namespace stretto::cuda
