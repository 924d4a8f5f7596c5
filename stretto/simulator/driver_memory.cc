// Memory of the simulated GPUs: the host's. Copies and fills of streams.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "stretto/simulator/driver_state.h"

namespace stretto::cuda {
namespace {

// Whose memory is where.
class Owners {
 public:
  void add(CUdeviceptr address, std::size_t bytes, int device) {
    std::lock_guard lock(mutex_);
    ranges_[address] = {bytes, device};
  }
  void remove(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    ranges_.erase(address);
  }
  std::size_t bytes_of(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    auto at = ranges_.find(address);
    return at == ranges_.end() ? 0 : at->second.first;
  }
  // -1: the host's, or another process's.
  int of(CUdeviceptr address) {
    std::lock_guard lock(mutex_);
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return -1;
    const auto& [begin, range] = *std::prev(next);
    return address - begin < range.first ? range.second : -1;
  }

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, std::pair<std::size_t, int>> ranges_;  // bytes, device
};

Owners& owners() {
  static auto* const all = new Owners;
  return *all;
}

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// An allocation ends where a page begins that nobody may touch, within its alignment, so that an
// access past its end is a fault at once. Another such page is before its first.
constexpr std::size_t kPage = 4096, kAlignment = 512;

void* allocate_guarded(std::size_t bytes) {
  const std::size_t pages = rounded(std::max<std::size_t>(bytes, 1), kPage);
  void* mapped = mmap(nullptr, pages + 2 * kPage, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* first = static_cast<unsigned char*>(mapped) + kPage;
  if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped, pages + 2 * kPage);
    return nullptr;
  }
  return first + pages - rounded(std::max<std::size_t>(bytes, 1), kAlignment);
}

void free_guarded(void* memory, std::size_t bytes) {
  const std::size_t pages = rounded(std::max<std::size_t>(bytes, 1), kPage);
  auto* first = static_cast<unsigned char*>(memory) +
                rounded(std::max<std::size_t>(bytes, 1), kAlignment) - pages;
  munmap(first - kPage, pages + 2 * kPage);
}

// The GPU that a copy on `stream` fetches from, -1: none other.
int fetched_from(CUstream stream, CUdeviceptr from) {
  int device = owners().of(from);
  return device == stream->device ? -1 : device;
}

CUresult copy(CUstream stream, void* to, const void* from, std::size_t bytes) {
  return enqueue_act(
      stream, [=] { std::memmove(to, from, bytes); },
      fetched_from(stream, reinterpret_cast<CUdeviceptr>(from)));
}

}  // namespace

SIM_API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return *free = *total = kMemoryBytes, CUDA_SUCCESS;
}
SIM_API cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  if (bytes > kMemoryBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = allocate_guarded(bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return owners().add(*address, bytes, current_device()), CUDA_SUCCESS;
}
// Waits, as the driver does: nothing is freed under a kernel.
SIM_API cuMemFree_v2(CUdeviceptr address) {
  tasks().await_all();
  std::size_t bytes = owners().bytes_of(address);
  owners().remove(address);
  if (address != 0) free_guarded(bytes_at(address), bytes);
  return CUDA_SUCCESS;
}
SIM_API cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
SIM_API cuMemFreeHost(void* memory) {
  tasks().await_all();
  return std::free(memory), CUDA_SUCCESS;
}
SIM_API cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned) {
  return *address = reinterpret_cast<CUdeviceptr>(memory), CUDA_SUCCESS;
}
SIM_API cuMemHostRegister_v2(void*, std::size_t, unsigned) { return CUDA_SUCCESS; }
SIM_API cuMemHostUnregister(void*) { return CUDA_SUCCESS; }

// A handle is a file in memory.
SIM_API cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                      CUmemAllocationGranularity_flags) {
  return *bytes = 2 << 20, CUDA_SUCCESS;
}
SIM_API cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                    const CUmemAllocationProp*, unsigned long long) {
  int file = memfd_create("simulated_gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  return *handle = static_cast<CUmemGenericAllocationHandle>(file), CUDA_SUCCESS;
}
SIM_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  return close(static_cast<int>(handle)), CUDA_SUCCESS;
}
SIM_API cuMemExportToShareableHandle(void* file, CUmemGenericAllocationHandle handle,
                                     CUmemAllocationHandleType, unsigned long long) {
  int copy = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return kInvalid;
  return *static_cast<int*>(file) = copy, CUDA_SUCCESS;
}
SIM_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* file,
                                       CUmemAllocationHandleType) {
  int copy = fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(file)), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return kInvalid;
  return *handle = static_cast<CUmemGenericAllocationHandle>(copy), CUDA_SUCCESS;
}
SIM_API cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                            unsigned long long) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return *address = reinterpret_cast<CUdeviceptr>(at), CUDA_SUCCESS;
}
SIM_API cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  tasks().await_all();
  return munmap(bytes_at(address), bytes) == 0 ? CUDA_SUCCESS : kInvalid;
}
SIM_API cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                 CUmemGenericAllocationHandle handle, unsigned long long) {
  void* at = mmap(bytes_at(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  static_cast<int>(handle), static_cast<off_t>(offset));
  return at == MAP_FAILED ? kInvalid : CUDA_SUCCESS;
}
SIM_API cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  tasks().await_all();
  void* at = mmap(bytes_at(address), bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? kInvalid : CUDA_SUCCESS;
}
SIM_API cuMemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return CUDA_SUCCESS;
}

SIM_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  // Pageable memory is read before the call returns.
  if (stream->capture != nullptr) return copy(stream, bytes_at(to), from, bytes);
  const auto* first = static_cast<const unsigned char*>(from);
  return enqueue_act(stream, [to, kept = std::vector<unsigned char>(first, first + bytes)] {
    std::memcpy(bytes_at(to), kept.data(), kept.size());
  });
}
SIM_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy(stream, to, bytes_at(from), bytes);
}
SIM_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy(stream, bytes_at(to), bytes_at(from), bytes);
}
SIM_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes,
                          CUstream stream) {
  return copy(stream, bytes_at(to), bytes_at(from), bytes);
}
SIM_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* box, CUstream stream) {
  auto act = [b = *box] {
    for (std::size_t r = 0; r < b.Height; ++r) {
      std::memmove(bytes_at(b.dstDevice) + (b.dstY + r) * b.dstPitch + b.dstXInBytes,
                   bytes_at(b.srcDevice) + (b.srcY + r) * b.srcPitch + b.srcXInBytes,
                   b.WidthInBytes);
    }
  };
  return enqueue_act(stream, act, fetched_from(stream, box->srcDevice));
}
SIM_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  return enqueue_act(stream, [=] { std::memset(bytes_at(to), value, bytes); });
}
SIM_API cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t words, CUstream stream) {
  return enqueue_act(stream,
                     [=] { std::fill_n(reinterpret_cast<unsigned*>(bytes_at(to)), words, value); });
}

}  // namespace stretto::cuda
