// Value: a handle on a tile register of the program being recorded. Arithmetic on values records
// operations.
//
// A value behaves like a variable. Assigning inside a loop or `when` to a value made outside writes
// its register, so `acc = dot(acc, a, b)` accumulates; a value that shares its register with
// another variable must be copied first (copy(v)), otherwise both would change, and that is a
// UserError.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>

#include "stretto/ir/program.h"

namespace stretto {

class ProgramBuilder;

class Value {
 public:
  Value() = default;
  Value(const Value& other);
  Value(Value&& other) noexcept = default;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other);
  ~Value() = default;

  const ValueType& type() const;
  std::int64_t rows() const { return type().rows; }
  std::int64_t cols() const { return type().cols; }
  DType dtype() const { return type().dtype; }
  Value T() const;  // [cols, rows]

 private:
  friend class ProgramBuilder;
  friend struct ValueOps;
  struct Register {
    ProgramBuilder* builder;
    int idx;
    ValueType type;
  };
  std::shared_ptr<Register> register_;
  std::int64_t block_id_ = -1;  // the block in which this variable was made
};

// Elementwise, with broadcasting of [r,1], [1,c] and [1,1]. Comparisons give bool.
Value operator+(const Value& a, const Value& b);
Value operator-(const Value& a, const Value& b);
Value operator*(const Value& a, const Value& b);
Value operator/(const Value& a, const Value& b);
Value operator+(const Value& a, double b);
Value operator-(const Value& a, double b);
Value operator*(const Value& a, double b);
Value operator/(const Value& a, double b);
Value operator-(const Value& a);
Value operator<(const Value& a, const Value& b);
Value operator<=(const Value& a, const Value& b);
Value operator>(const Value& a, const Value& b);
Value operator>=(const Value& a, const Value& b);
Value operator==(const Value& a, const Value& b);
Value operator!=(const Value& a, const Value& b);
Value operator&&(const Value& a, const Value& b);
Value operator||(const Value& a, const Value& b);
Value operator!(const Value& a);
Value maximum(const Value& a, const Value& b);
Value minimum(const Value& a, const Value& b);
Value where(const Value& condition, const Value& then, const Value& otherwise);

Value abs(const Value& v);
Value exp(const Value& v);
Value exp2(const Value& v);
Value log(const Value& v);
Value sqrt(const Value& v);
Value rsqrt(const Value& v);
Value recip(const Value& v);
Value tanh(const Value& v);
Value sigmoid(const Value& v);
Value silu(const Value& v);
Value sin(const Value& v);
Value cos(const Value& v);
Value floor(const Value& v);

Value cast(const Value& v, DType dtype);  // the same value when the dtype is already that
Value copy(const Value& v);               // in a register of its own
Value broadcast(const Value& v, std::int64_t rows, std::int64_t cols);
Value row_sum(const Value& v);     // [r,c] -> [r,1]
Value row_max(const Value& v);     // [r,c] -> [r,1]
Value row_min(const Value& v);     // [r,c] -> [r,1]
Value row_argmax(const Value& v);  // [r,c] -> i32 [r,1], lowest column on ties
Value col_sum(const Value& v);     // [r,c] -> [1,c]
Value col_max(const Value& v);     // [r,c] -> [1,c]

// acc [m,n] f32 + a [m,k] * b [k,n], accumulated in fp32.
Value dot(const Value& acc, const Value& a, const Value& b);
// acc + (a * b) * scale_a [m,1] * scale_b [1,n].
struct DotScales {
  Value a, b;
};
Value dot_scaled(const Value& acc, const Value& a, const Value& b, const DotScales& scales);

}  // namespace stretto
