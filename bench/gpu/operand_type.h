// The element type of every operand that a benchmark does not give another.
#pragma once

#include "stretto/base/dtype.h"

namespace stretto::bench {

inline constexpr DType kDType = DType::kBF16;

}  // namespace stretto::bench
