// What the binary operations of index expressions mean, once for both evaluators: the tree walk of
// expr.cc and the executor's flat code. In a header because the executor runs it for every tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stretto/base/errors.h"
#include "stretto/ir/expr.h"

namespace stretto {

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  STRETTO_CHECK(b != 0, "index expression divides by zero");
  std::int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

inline std::int64_t apply(ExprOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ExprOp::kAdd:
      return a + b;
    case ExprOp::kSub:
      return a - b;
    case ExprOp::kMul:
      return a * b;
    case ExprOp::kFloorDiv:
      return floor_div(a, b);
    case ExprOp::kMod:
      return a - floor_div(a, b) * b;
    case ExprOp::kMin:
      return std::min(a, b);
    case ExprOp::kMax:
      return std::max(a, b);
    case ExprOp::kLt:
      return a < b;
    case ExprOp::kLe:
      return a <= b;
    case ExprOp::kEq:
      return a == b;
    case ExprOp::kAnd:
      return a != 0 && b != 0;
    case ExprOp::kOr:
      return a != 0 || b != 0;
    default:
      throw InternalError("expr: not a binary operation");
  }
}

}  // namespace stretto
