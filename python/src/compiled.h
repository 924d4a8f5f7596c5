// A program proved for what Python launches, and the kernel that was compiled beside its proof, which
// waits here for the executable that runs it. programs.cc makes it, session_executable.h takes it.
#pragma once

#include <mutex>
#include <optional>
#include <utility>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"

namespace stretto::python {

class Compiled {
 public:
  explicit Compiled(Proved proved, std::optional<GpuCode> code = std::nullopt)
      : proved_(std::move(proved)), code_(std::move(code)) {}

  const Proved& proved() const { return proved_; }
  // The kernel, which does not record. Once: it is large, and in the cache on disk for others.
  std::optional<GpuCode> take_code() {
    std::lock_guard lock(mutex_);
    return std::exchange(code_, std::nullopt);
  }

 private:
  Proved proved_;
  std::mutex mutex_;
  std::optional<GpuCode> code_;
};

}  // namespace stretto::python
