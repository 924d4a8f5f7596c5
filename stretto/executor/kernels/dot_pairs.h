// Products of two factors of bf16. Internal to dot.
#pragma once

#include <cstdint>

namespace stretto::kernels {

// Whether the processor, which has AVX-512, adds products of pairs of bf16 to sums of f32
// (AVX512-BF16), one product after the other, each rounded once: the chain of dot_tiles.h. It is
// tried out.
bool pairs_are_in_order();

// While it lives, numbers of this thread below f32's normal ones count as zero. The instruction for
// pairs works so; what multiplies bf16 without it must give the same bits.
class FlushScope {
 public:
  FlushScope();
  ~FlushScope();
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  [[maybe_unused]] std::uint32_t outer_ = 0;
};

}  // namespace stretto::kernels
