// A program of the user's that does what an operator of the catalog does: its inputs and outputs
// have the operator's names, dtypes and shapes. So the operator's reference checks its results, and
// the operator's unfused path is what it is compared with (`stretto bench FILE --like OP`).
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ops/harness/op_case.h"

namespace stretto {

// What in the caller's tensors differs between `program` and the operator at `shape`; "": nothing.
std::string difference_from(const OperatorInfo& op, const OpShape& shape, const Program& program);

// Whether the reference of a product of this shape takes no longer than about a second.
inline bool is_checked(const OpShape& shape) {
  constexpr double kMostProducts = 1 << 28;
  auto size = [](std::int64_t s) { return static_cast<double>(s == 0 ? 512 : s); };
  return size(shape.m) * size(shape.n) * size(shape.k) <= kMostProducts;
}

// UserError with that difference.
void check_like(const OperatorInfo& op, const OpShape& shape, const Program& program);

// `program` with the inputs that the operator's case at `shape` has, and what it expects of them.
// UserError as check_like.
OpCase case_like(const OperatorInfo& op, const OpShape& shape, const Program& program,
                 std::uint64_t seed);

}  // namespace stretto
