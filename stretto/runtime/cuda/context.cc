#include "stretto/runtime/cuda/context.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"

namespace stretto::cuda {

PrimaryContext::PrimaryContext(int ordinal) {
  int devices = num_devices();
  if (ordinal < 0 || ordinal >= devices) {
    driver();  // where there is none, that is the reason to give
    throw DeviceError(fmt::format("there is no GPU {}: the driver shows {}", ordinal, devices));
  }
  check(driver().device_get(&device_, ordinal), "cuDeviceGet");
  check(driver().primary_ctx_retain(&handle_, device_),
        fmt::format("starting GPU {} (cuDevicePrimaryCtxRetain)", ordinal));
}

PrimaryContext::~PrimaryContext() {
  log_refusal(driver().primary_ctx_release(device_), "cuDevicePrimaryCtxRelease");
}

void PrimaryContext::make_current() const {
  check(driver().ctx_set_current(handle_), "cuCtxSetCurrent");
}

ContextScope::ContextScope(const PrimaryContext& context) {
  check(driver().ctx_push_current(context.handle()), "cuCtxPushCurrent");
}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  log_refusal(driver().ctx_pop_current(&popped), "cuCtxPopCurrent");
}

void log_refusal(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return;
  log_warning(fmt::format("{}: {}", what, error_text(result)));
}

}  // namespace stretto::cuda
