// Where a program is meant to run: default configs depend on it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stretto {

enum class Target : std::uint8_t { kCpu, kCuda };

// Multiprocessors of an H100 SXM or H200. All blocks of a kernel run at the same time, one on each,
// because they wait for each other: the workers of all roles together must not exceed them.
inline constexpr int kGpuSms = 132;

// A worker per tile, but no more than `most` and at least one.
inline int gpu_workers(std::int64_t tiles, int most = kGpuSms) {
  return static_cast<int>(std::clamp<std::int64_t>(tiles, 1, std::max(most, 1)));
}

}  // namespace stretto
