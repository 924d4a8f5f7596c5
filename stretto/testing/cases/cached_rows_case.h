// What references over caches share: a cache's numbers as the rows that it stands for.
#pragma once

#include "stretto/testing/harness/op_case.h"

namespace stretto {

// Numbers of e4m3, and the scale of each `head_dim` of them, as rows of `dtype`.
Values scaled_rows(const Values& pages, const Values& scales, std::int64_t head_dim, DType dtype);

// Scales as caches have them, of all sizes: powers of two and numbers between them.
Values random_scales(std::size_t count, std::uint64_t seed);

}  // namespace stretto
