// The primary context of a device: what every object on it is made in and what a thread's driver
// calls go to.
#pragma once

#include "stretto/runtime/cuda/driver.h"

namespace stretto::cuda {

// Retained for its lifetime; kept alive by everything that was made in it (owned.h).
class PrimaryContext {
 public:
  explicit PrimaryContext(int ordinal);  // DeviceError where there is no such device
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  CUdevice device() const { return device_; }
  CUcontext handle() const { return handle_; }

  // The calling thread's calls go to this device from now on.
  void make_current() const;

 private:
  CUdevice device_ = 0;
  CUcontext handle_ = nullptr;
};

// Makes `context` current for its scope.
class ContextScope {
 public:
  explicit ContextScope(const PrimaryContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
};

// For destructors: a refusal is logged; silent once the driver has shut down with the process.
void log_refusal(CUresult result, const char* what);

}  // namespace stretto::cuda
