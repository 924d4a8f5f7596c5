// What the binary operations of index expressions mean, once for both evaluators: the tree walk of
// expr.cc and the executor's flat code. In a header because the executor runs it for every tile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stretto/base/errors.h"
#include "stretto/ir/expr.h"

namespace stretto {

[[noreturn]] inline void leaves_64_bits() { throw NoValue("an index leaves 64 bits"); }

inline std::int64_t negated(std::int64_t a) {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(std::int64_t{0}, a, &result)) leaves_64_bits();
  return result;
}

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) throw NoValue("an index is divided by zero");
  if (b == -1) return negated(a);
  std::int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

// Of the divisor's sign.
inline std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  if (b == 0) throw NoValue("an index is divided by zero");
  if (b == -1) return 0;
  std::int64_t r = a % b;
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}

inline std::int64_t apply(ExprOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case ExprOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) leaves_64_bits();
      return result;
    case ExprOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) leaves_64_bits();
      return result;
    case ExprOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) leaves_64_bits();
      return result;
    case ExprOp::kFloorDiv:
      return floor_div(a, b);
    case ExprOp::kMod:
      return floor_mod(a, b);
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
