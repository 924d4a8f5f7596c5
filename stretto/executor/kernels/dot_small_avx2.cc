#if defined(__x86_64__)
#include <immintrin.h>

#define STRETTO_TARGET __attribute__((target("avx2,fma,f16c")))
#define STRETTO_TARGET_NAME avx2
#define STRETTO_TARGET_WIDENS  // eight 16-bit floats to f32, in one or two instructions

namespace stretto::kernels::avx2 {
namespace {
STRETTO_TARGET inline __m256 widen_bf16(const void* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
STRETTO_TARGET inline __m256 widen_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
}  // namespace
}  // namespace stretto::kernels::avx2

#include "stretto/executor/kernels/dot_small_body.h"
#endif
