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

#include "stretto/ir/program.h"
#include "stretto/lang/loc.h"

namespace stretto {

class ProgramBuilder;

class Value {
 public:
  // It is assigned later; an error names the line when it never was.
  Value(Loc loc = Loc::current()) : made_at_(loc) {}  // NOLINT
  Value(const Value& other);
  Value(Value&& other) noexcept = default;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other);
  ~Value() = default;

  const ValueType& type() const;
  std::int64_t rows() const { return type().rows; }
  std::int64_t cols() const { return type().cols; }
  DType dtype() const { return type().dtype; }
  Value T(Loc loc = Loc::current()) const;  // [cols, rows]

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
  Loc made_at_;
};

// A value and the line on which it is used: what every operation takes first, since operators
// cannot have a default argument.
struct LocatedValue {
  LocatedValue(const Value& v,  // NOLINT: converts
               Loc l = Loc::current())
      : value(v), loc(l) {}
  const Value& value;
  Loc loc;
};

// Elementwise operations broadcast [r,1], [1,c] and [1,1]. Comparisons give bool. A number takes
// the dtype of the value beside it.
Value operator+(const LocatedValue& a, const Value& b);
Value operator-(const LocatedValue& a, const Value& b);
Value operator*(const LocatedValue& a, const Value& b);
Value operator/(const LocatedValue& a, const Value& b);
Value operator+(const LocatedValue& a, double b);
Value operator-(const LocatedValue& a, double b);
Value operator*(const LocatedValue& a, double b);
Value operator/(const LocatedValue& a, double b);
Value operator+(double a, const LocatedValue& b);
Value operator-(double a, const LocatedValue& b);
Value operator*(double a, const LocatedValue& b);
Value operator/(double a, const LocatedValue& b);
Value operator-(const LocatedValue& a);
Value operator<(const LocatedValue& a, const Value& b);
Value operator<=(const LocatedValue& a, const Value& b);
Value operator>(const LocatedValue& a, const Value& b);
Value operator>=(const LocatedValue& a, const Value& b);
Value operator==(const LocatedValue& a, const Value& b);
Value operator!=(const LocatedValue& a, const Value& b);
Value operator<(const LocatedValue& a, double b);
Value operator<=(const LocatedValue& a, double b);
Value operator>(const LocatedValue& a, double b);
Value operator>=(const LocatedValue& a, double b);
Value operator==(const LocatedValue& a, double b);
Value operator!=(const LocatedValue& a, double b);
Value operator&&(const LocatedValue& a, const Value& b);
Value operator||(const LocatedValue& a, const Value& b);
Value operator!(const LocatedValue& a);
Value maximum(const LocatedValue& a, const Value& b);
Value minimum(const LocatedValue& a, const Value& b);
Value maximum(const LocatedValue& a, double b);
Value minimum(const LocatedValue& a, double b);
Value where(const LocatedValue& condition, const Value& then, const Value& otherwise);
Value where(const LocatedValue& condition, const Value& then, double otherwise);

Value abs(const LocatedValue& v);
Value exp(const LocatedValue& v);
Value exp2(const LocatedValue& v);
Value log(const LocatedValue& v);
Value sqrt(const LocatedValue& v);
Value rsqrt(const LocatedValue& v);
Value recip(const LocatedValue& v);
Value tanh(const LocatedValue& v);
Value sigmoid(const LocatedValue& v);
Value silu(const LocatedValue& v);
Value sin(const LocatedValue& v);
Value cos(const LocatedValue& v);
Value floor(const LocatedValue& v);
Value round(const LocatedValue& v);  // to the nearest whole number, of two the even one

// The same value when the dtype is already that. To a float it rounds to nearest even; to a whole
// number it truncates and saturates, NaN becoming 0.
Value cast(const LocatedValue& v, DType dtype);
Value copy(const LocatedValue& v);  // in a register of its own
Value broadcast(const LocatedValue& v, std::int64_t rows, std::int64_t cols);
Value columns(const LocatedValue& v, std::int64_t first, std::int64_t cols);  // [r,c] -> [r,cols]
Value row_sum(const LocatedValue& v);                                         // [r,c] -> [r,1]
Value row_max(const LocatedValue& v);                                         // [r,c] -> [r,1]
Value row_min(const LocatedValue& v);                                         // [r,c] -> [r,1]
Value row_argmax(const LocatedValue& v);  // [r,c] -> i32 [r,1], lowest column on ties
Value col_sum(const LocatedValue& v);     // [r,c] -> [1,c]
Value col_max(const LocatedValue& v);     // [r,c] -> [1,c]

// acc [m,n] f32 + a [m,k] * b [k,n], accumulated in fp32. a's rows from `rows` on are zero; GPUs
// leave such rows out by halves of a tile, CPU ranks all of them.
Value dot(const LocatedValue& acc, const Value& a, const Value& b);
Value dot(const LocatedValue& acc, const Value& a, const Value& b, const Expr& rows);
// acc [m,n+8]: its first n columns as above, and to each of the last eight the sum of a's row,
// which the tensor core adds up along the way; f64 factors have no such form.
Value dot_and_row_sums(const LocatedValue& acc, const Value& a, const Value& b);
// acc + (a * b) * scale_a [m,1] * scale_b [1,n].
struct DotScales {
  Value a, b;
};
Value dot_scaled(const LocatedValue& acc, const Value& a, const Value& b, const DotScales& scales);

}  // namespace stretto
