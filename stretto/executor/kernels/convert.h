// Conversion of contiguous elements between any two dtypes: the inner loop of cast, load, store and
// of the panels of dot. Internal to the kernels.
//
// Floats round once to nearest even (base/dtype.h gives the same bits, except for the payload of
// NaNs); a float becomes an integer by truncation with saturation, NaN becomes 0; an integer
// becomes a narrower one by saturation; anything but 0 becomes true.
#pragma once

#include <cstdint>

#include "stretto/base/dtype.h"

namespace stretto::kernels {

// dst[0..count) = src[0..count). The arrays do not overlap, or are the same with equal dtypes.
void convert(DType dst_dtype, void* dst, DType src_dtype, const void* src, std::int64_t count);

// values[0..count) rounded to a 16- or 8-bit float and back, in place.
void round_to(DType dtype, float* values, std::int64_t count);

}  // namespace stretto::kernels
