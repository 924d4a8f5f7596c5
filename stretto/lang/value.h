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
using Loc = std::source_location;

class Value {
 public:
  // Assigned later; the line is named when it never was.
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

// A value and the line on which it is used: what an operator takes on its left, since it cannot
// have a default argument.
struct LocatedValue {
  LocatedValue(const Value& v,  // NOLINT: converts
               Loc l = Loc::current())
      : value(v), loc(l) {}
  const Value& value;
  Loc loc;
};

// Elementwise, with broadcasting of [r,1], [1,c] and [1,1]. Comparisons give bool.
Value operator+(const LocatedValue& a, const Value& b);
Value operator-(const LocatedValue& a, const Value& b);
Value operator*(const LocatedValue& a, const Value& b);
Value operator/(const LocatedValue& a, const Value& b);
Value operator+(const LocatedValue& a, double b);
Value operator-(const LocatedValue& a, double b);
Value operator*(const LocatedValue& a, double b);
Value operator/(const LocatedValue& a, double b);
Value operator-(const LocatedValue& a);
Value operator<(const LocatedValue& a, const Value& b);
Value operator<=(const LocatedValue& a, const Value& b);
Value operator>(const LocatedValue& a, const Value& b);
Value operator>=(const LocatedValue& a, const Value& b);
Value operator==(const LocatedValue& a, const Value& b);
Value operator!=(const LocatedValue& a, const Value& b);
Value operator&&(const LocatedValue& a, const Value& b);
Value operator||(const LocatedValue& a, const Value& b);
Value operator!(const LocatedValue& a);
Value maximum(const Value& a, const Value& b, Loc loc = Loc::current());
Value minimum(const Value& a, const Value& b, Loc loc = Loc::current());
Value where(const Value& condition, const Value& then, const Value& otherwise,
            Loc loc = Loc::current());

Value abs(const Value& v, Loc loc = Loc::current());
Value exp(const Value& v, Loc loc = Loc::current());
Value exp2(const Value& v, Loc loc = Loc::current());
Value log(const Value& v, Loc loc = Loc::current());
Value sqrt(const Value& v, Loc loc = Loc::current());
Value rsqrt(const Value& v, Loc loc = Loc::current());
Value recip(const Value& v, Loc loc = Loc::current());
Value tanh(const Value& v, Loc loc = Loc::current());
Value sigmoid(const Value& v, Loc loc = Loc::current());
Value silu(const Value& v, Loc loc = Loc::current());
Value sin(const Value& v, Loc loc = Loc::current());
Value cos(const Value& v, Loc loc = Loc::current());
Value floor(const Value& v, Loc loc = Loc::current());

Value cast(const Value& v, DType dtype,
           Loc loc = Loc::current());  // the same value when the dtype is already that
Value copy(const Value& v, Loc loc = Loc::current());  // in a register of its own
Value broadcast(const Value& v, std::int64_t rows, std::int64_t cols, Loc loc = Loc::current());
Value row_sum(const Value& v, Loc loc = Loc::current());  // [r,c] -> [r,1]
Value row_max(const Value& v, Loc loc = Loc::current());  // [r,c] -> [r,1]
Value row_min(const Value& v, Loc loc = Loc::current());  // [r,c] -> [r,1]
Value row_argmax(const Value& v,
                 Loc loc = Loc::current());  // [r,c] -> i32 [r,1], lowest column on ties
Value col_sum(const Value& v, Loc loc = Loc::current());  // [r,c] -> [1,c]
Value col_max(const Value& v, Loc loc = Loc::current());  // [r,c] -> [1,c]

// acc [m,n] f32 + a [m,k] * b [k,n], accumulated in fp32.
Value dot(const Value& acc, const Value& a, const Value& b, Loc loc = Loc::current());
// acc + (a * b) * scale_a [m,1] * scale_b [1,n].
struct DotScales {
  Value a, b;
};
Value dot_scaled(const Value& acc, const Value& a, const Value& b, const DotScales& scales,
                 Loc loc = Loc::current());

}  // namespace stretto
