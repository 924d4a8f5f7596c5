// What kernels are made for. Default configs and generated kernels depend on it and on nothing else
// of a GPU.
#pragma once

#include <cstddef>
#include <string>

namespace stretto {

// The defaults are an H100 SXM's and an H200's.
struct GpuTarget {
  std::string arch = "sm_90a";
  // Multiprocessors. All blocks of a kernel that wait for each other run at the same time: the
  // workers of all roles together must not exceed what these hold.
  int sms = 132;
  std::size_t shared_bytes = std::size_t{227} * 1024;  // that a block may have
  friend bool operator==(const GpuTarget&, const GpuTarget&) = default;
};

}  // namespace stretto
