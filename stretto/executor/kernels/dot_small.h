// Products with few rows, x[m, k] * W, where reading W is all the work: W is read once per four
// rows from where it lies, in its own dtype. Internal to dot.
//
// dot_small_body.h is the code; dot_small_avx2.cc and dot_small_portable.cc compile it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/base/dtype.h"

namespace stretto::kernels {

struct SmallDot {
  float* acc;  // [m, n]
  std::ptrdiff_t acc_stride;
  const float* x;  // [m, k] with x_stride >= k rounded up to 8; zeros beyond k
  std::ptrdiff_t x_stride;
  const void* weights;  // f32, bf16 or f16
  DType dtype;
  std::ptrdiff_t weights_stride;
  std::int64_t m, n, k;
  bool accumulate;
};

namespace avx2 {
void dot_weight_rows(const SmallDot& s);     // W^T is stored: weights [n, k]
void dot_weight_columns(const SmallDot& s);  // W is stored: weights [k, n]
}  // namespace avx2

namespace portable {
void dot_weight_rows(const SmallDot& s);
void dot_weight_columns(const SmallDot& s);
}  // namespace portable

}  // namespace stretto::kernels
