// Where a program is meant to run: default configs depend on it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "stretto/ir/gpu_target.h"

namespace stretto {

// CPU ranks, or GPUs of this kind.
class Target {
 public:
  enum Kind : std::uint8_t { kCpu, kCuda };
  Target(Kind kind) : kind_(kind) {}                             // NOLINT(*-explicit-*)
  Target(GpuTarget gpu) : kind_(kCuda), gpu_(std::move(gpu)) {}  // NOLINT(*-explicit-*)

  const GpuTarget& gpu() const { return gpu_; }
  int sms() const { return gpu_.sms; }
  friend bool operator==(const Target& target, Kind kind) { return target.kind_ == kind; }
  friend bool operator==(const Target&, const Target&) = default;

 private:
  Kind kind_;
  GpuTarget gpu_;
};

// Whether a remainder by the number of ranks is a mask: kernels have registers to spare then.
inline bool masks_ranks(int world_size) {
  return std::has_single_bit(static_cast<unsigned>(world_size));
}

// A worker per tile, but no more than `most` and at least one.
inline int gpu_workers(std::int64_t tiles, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(tiles, 1, std::max(most, 1)));
}

// Threads, `most` at most, among which a row of `cols` elements is dealt out in runs of 8 without
// any left over: loads of the others are guarded and come one by one, and stores of one run a
// thread have all of a link, of more a quarter (docs/concepts/prediction.md). 0, which is the
// resource's own number, where no whole warps do that.
inline int row_threads(std::int64_t cols, std::int64_t most = 1024) {
  constexpr std::int64_t kRun = 8, kWarp = 32, kFewest = 128;
  if (cols % kRun != 0) return 0;
  for (std::int64_t runs = 1; cols / kRun / runs >= kFewest; ++runs) {
    std::int64_t threads = cols / kRun / runs;
    if (threads * runs * kRun == cols && threads % kWarp == 0 && threads <= most) {
      return static_cast<int>(threads);
    }
  }
  return 0;
}

}  // namespace stretto
