#include "stretto/executor/kernels/dot_pairs.h"

#include <cmath>
#include <cstring>
#include <random>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stretto::kernels {

#if defined(__x86_64__)
namespace {

constexpr int kLanes = 16;

float widened(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

__attribute__((target("avx512f,avx512bf16"))) void add_pairs(float* sum, const std::uint16_t* a,
                                                             const std::uint16_t* b) {
  const __m512 sums = _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)_mm512_loadu_si512(a),
                                       (__m512bh)_mm512_loadu_si512(b));
  _mm512_storeu_ps(sum, sums);
}

// Sizes differ so much that another order rounds otherwise, and never so that a sum overflows or
// counts as zero.
bool adds_in_order() {
  std::mt19937 random(1);
  auto number = [&] {
    const std::uint32_t exponent = 107 + random() % 41;
    return static_cast<std::uint16_t>((random() & 0x807f) | exponent << 7);
  };
  for (int trial = 0; trial < 100; ++trial) {
    std::uint16_t a[2 * kLanes], b[2 * kLanes];
    float sum[kLanes], chain[kLanes];
    for (int i = 0; i < 2 * kLanes; ++i) a[i] = number(), b[i] = number();
    for (int i = 0; i < kLanes; ++i) {
      sum[i] = widened(number()) * widened(number());
      chain[i] = std::fma(widened(a[2 * i + 1]), widened(b[2 * i + 1]), sum[i]);
      chain[i] = std::fma(widened(a[2 * i]), widened(b[2 * i]), chain[i]);
    }
    add_pairs(sum, a, b);
    if (std::memcmp(sum, chain, sizeof(sum)) != 0) return false;
  }
  return true;
}

constexpr std::uint32_t kZeroForSmall = 0x8040;  // of results and of operands

}  // namespace

bool pairs_are_in_order() { return __builtin_cpu_supports("avx512bf16") && adds_in_order(); }

FlushScope::FlushScope() : outer_(_mm_getcsr()) { _mm_setcsr(outer_ | kZeroForSmall); }
FlushScope::~FlushScope() { _mm_setcsr(outer_); }

#else

bool pairs_are_in_order() { return false; }
FlushScope::FlushScope() = default;
FlushScope::~FlushScope() = default;

#endif

}  // namespace stretto::kernels
