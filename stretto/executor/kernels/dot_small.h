// Products with few rows, x[m, k] * W, where reading W is all the work: W is read once per four or
// eight rows from where it lies, in its own dtype. Internal to dot.
//
// dot_small_body.h is the code; dot_small_portable.cc, _avx2.cc, _avx512.cc and _pairs.cc compile
// it, the last one for processors that multiply pairs of bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/base/dtype.h"

namespace stretto::kernels {

struct SmallDot {
  float* acc;  // [m, n]
  std::ptrdiff_t acc_stride;
  const float* x;  // [m, k]
  std::ptrdiff_t x_stride;
  const float* x_pairs;  // the same as pairs of bf16, the first one in the high half; or null
  const void* weights;   // f32, bf16 or f16
  DType dtype;
  std::ptrdiff_t weights_stride;
  std::int64_t m, n, k;
  bool accumulate;
};

namespace avx2 {
void dot_weight_rows(const SmallDot& s);     // W^T is stored: weights [n, k]
void dot_weight_columns(const SmallDot& s);  // W is stored: weights [k, n]
}  // namespace avx2

namespace avx512 {
void dot_weight_rows(const SmallDot& s);
void dot_weight_columns(const SmallDot& s);
}  // namespace avx512

namespace pairs {
void dot_weight_rows(const SmallDot& s);
void dot_weight_columns(const SmallDot& s);
}  // namespace pairs

namespace portable {
void dot_weight_rows(const SmallDot& s);
void dot_weight_columns(const SmallDot& s);
}  // namespace portable

}  // namespace stretto::kernels
