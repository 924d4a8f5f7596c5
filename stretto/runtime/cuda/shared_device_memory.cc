#include "stretto/runtime/cuda/shared_device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "stretto/runtime/cuda/allocation.h"

namespace stretto::cuda {
namespace {

CUmemAllocationProp properties_on(const PrimaryContext& context) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context.device()};
  return p;
}

// The same in every process, whose devices are alike.
std::size_t whole_pages(const PrimaryContext& context, std::size_t bytes) {
  CUmemAllocationProp properties = properties_on(context);
  std::size_t page = 0;
  check(
      driver().mem_get_allocation_granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity");
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

SharedDeviceMemory::SharedDeviceMemory(const Device& device, std::size_t bytes)
    : context_(device.context()), bytes_(bytes), mapped_bytes_(whole_pages(*context_, bytes)) {
  ContextScope scope(*context_);
  CUmemAllocationProp properties = properties_on(*context_);
  check_allocated(driver().mem_create(&handle_, mapped_bytes_, &properties, 0), device, bytes);
  has_handle_ = true;
  map();
}

SharedDeviceMemory::SharedDeviceMemory(const Device& device, const Fd& memory, std::size_t bytes)
    : context_(device.context()), bytes_(bytes), mapped_bytes_(whole_pages(*context_, bytes)) {
  ContextScope scope(*context_);
  // The driver takes the descriptor itself where the reference says "pointer".
  auto descriptor = static_cast<std::intptr_t>(memory.get());
  check(driver().mem_import_from_shareable_handle(&handle_, reinterpret_cast<void*>(descriptor),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "taking another process's memory (cuMemImportFromShareableHandle)");
  has_handle_ = true;
  map();
}

// A constructor that fails runs no destructor: what is there so far goes here.
void SharedDeviceMemory::map() {
  try {
    check(driver().mem_address_reserve(&address_, mapped_bytes_, 0, 0, 0),
          fmt::format("cuMemAddressReserve({})", mapped_bytes_));
    check(driver().mem_map(address_, mapped_bytes_, 0, handle_, 0), "cuMemMap");
    is_mapped_ = true;
    CUmemAccessDesc access{
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context_->device()},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().mem_set_access(address_, mapped_bytes_, &access, 1),
          "letting a GPU address memory of several processes (cuMemSetAccess)");
  } catch (...) {
    release();
    throw;
  }
}

void SharedDeviceMemory::release() const {
  if (is_mapped_) log_refusal(driver().mem_unmap(address_, mapped_bytes_), "cuMemUnmap");
  if (address_ != 0) {
    log_refusal(driver().mem_address_free(address_, mapped_bytes_), "cuMemAddressFree");
  }
  if (has_handle_) log_refusal(driver().mem_release(handle_), "cuMemRelease");
}

SharedDeviceMemory::~SharedDeviceMemory() {
  CUresult result = driver().ctx_push_current(context_->handle());
  if (result == CUDA_SUCCESS) {
    release();
    CUcontext popped = nullptr;
    result = driver().ctx_pop_current(&popped);
  }
  log_refusal(result, "releasing memory of several processes");
}

Fd SharedDeviceMemory::descriptor() const {
  ContextScope scope(*context_);
  int fd = -1;
  check(driver().mem_export_to_shareable_handle(&fd, handle_,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "passing memory on (cuMemExportToShareableHandle)");
  return Fd(fd);
}

}  // namespace stretto::cuda
