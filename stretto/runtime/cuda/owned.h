// Owner of one driver object (stream, event, module, memory ...): destroyed once, in the context it
// was made in, without disturbing the calling thread's current device.
#pragma once

#include <memory>
#include <utility>

#include "stretto/runtime/cuda/context.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::cuda {

// kDestroy is the function of Driver's table that ends a Handle. A default handle owns nothing.
template <typename Handle, CUresult (*Driver::*kDestroy)(Handle)>
class Owned {
 public:
  Owned(std::shared_ptr<const PrimaryContext> context, Handle handle)
      : context_(std::move(context)), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : context_(std::move(other.context_)), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ == Handle{}) return;
    CUresult result = driver().ctx_push_current(context_->handle());
    if (result == CUDA_SUCCESS) {
      result = (driver().*kDestroy)(handle_);
      CUcontext popped = nullptr;
      driver().ctx_pop_current(&popped);
    }
    log_refusal(result, "releasing a device object");
  }

  Handle get() const { return handle_; }
  // Whose it is from now on, is another's business.
  Handle release() { return std::exchange(handle_, Handle{}); }
  const std::shared_ptr<const PrimaryContext>& context() const { return context_; }

 private:
  std::shared_ptr<const PrimaryContext> context_;
  Handle handle_;
};

}  // namespace stretto::cuda
