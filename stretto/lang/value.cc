#include "stretto/lang/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/column_dot.h"
#include "stretto/lang/program_builder.h"

namespace stretto {

// What the free functions need of the builder.
struct ValueOps {
  static ProgramBuilder& builder(const Value& v) {
    if (!v.register_) never_assigned(v);
    return *v.register_->builder;
  }

  [[noreturn]] static void never_assigned(const Value& v) {
    SourceLoc made_at = to_source_loc(v.made_at_);
    throw UserError(
        fmt::format("{}:{}: the value made here is used before anything was assigned to it",
                    made_at.file, made_at.line));
  }

  static ProgramBuilder& at(const Value& v, const Loc& loc) {
    ProgramBuilder& b = builder(v);
    b.last_loc_ = to_source_loc(loc);
    return b;
  }

  static Value emit(OpCode code, const ValueType& type, std::vector<const Value*> operands,
                    const Loc& loc) {
    for (const Value* v : operands) builder(*v);
    return at(*operands[0], loc).emit_value(code, type, std::move(operands));
  }

  static Op& last(ProgramBuilder& builder) { return builder.blocks_.back().block->back(); }

  static Value unary(UnaryOp op, const LocatedValue& of) {
    const Value& v = of.value;
    Value result = emit(OpCode::kUnary, v.type(), {&v}, of.loc);
    last(builder(v)).unary = op;
    return result;
  }

  static ValueType broadcast_shape(const Value& a, const Value& b, DType dtype) {
    auto extent = [&](std::int64_t x, std::int64_t y) {
      if (x != y && x != 1 && y != 1) {
        builder(a).fail(fmt::format("shapes [{},{}] and [{},{}] do not broadcast", a.rows(),
                                    a.cols(), b.rows(), b.cols()));
      }
      return std::max(x, y);
    };
    return {dtype, extent(a.rows(), b.rows()), extent(a.cols(), b.cols())};
  }

  static Value binary(BinaryOp op, const LocatedValue& left, const Value& b) {
    const Value& a = left.value;
    at(a, left.loc);
    builder(b);
    bool compares = op >= BinaryOp::kLt && op <= BinaryOp::kGe;
    ValueType type = broadcast_shape(a, b, compares ? DType::kBool : a.dtype());
    Value result = emit(OpCode::kBinary, type, {&a, &b}, left.loc);
    last(builder(a)).binary = op;
    return result;
  }

  static Value constant(const LocatedValue& like, double value) {
    return builder(like.value).full(like.value.dtype(), 1, 1, value, like.loc);
  }

  static Value reduce(ReduceOp op, int axis, const LocatedValue& of) {
    const Value& v = of.value;
    ValueType type{op == ReduceOp::kArgMax ? DType::kI32 : v.dtype(), axis == 1 ? v.rows() : 1,
                   axis == 1 ? 1 : v.cols()};
    Value result = emit(OpCode::kReduce, type, {&v}, of.loc);
    last(builder(v)).reduce = op;
    last(builder(v)).axis = axis;
    return result;
  }
};

Value::Value(const Value& other) : register_(other.register_) {
  if (register_) block_id_ = register_->builder->current_block_id();
}

Value& Value::operator=(const Value& other) {
  if (this != &other) ValueOps::builder(other).assign(*this, other, false);
  return *this;
}

Value& Value::operator=(Value&& other) {
  if (this != &other) ValueOps::builder(other).assign(*this, other, true);
  return *this;
}

const ValueType& Value::type() const {
  if (!register_) ValueOps::never_assigned(*this);
  return register_->type;
}

Value Value::T(Loc loc) const {
  return ValueOps::emit(OpCode::kTranspose, {dtype(), cols(), rows()}, {this}, loc);
}

Value operator+(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kAdd, a, b);
}
Value operator-(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kSub, a, b);
}
Value operator*(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kMul, a, b);
}
Value operator/(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kDiv, a, b);
}
Value operator+(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kAdd, a, ValueOps::constant(a, b));
}
Value operator-(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kSub, a, ValueOps::constant(a, b));
}
Value operator*(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kMul, a, ValueOps::constant(a, b));
}
Value operator/(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kDiv, a, ValueOps::constant(a, b));
}
Value operator+(double a, const LocatedValue& b) {
  return ValueOps::binary(BinaryOp::kAdd, {ValueOps::constant(b, a), b.loc}, b.value);
}
Value operator-(double a, const LocatedValue& b) {
  return ValueOps::binary(BinaryOp::kSub, {ValueOps::constant(b, a), b.loc}, b.value);
}
Value operator*(double a, const LocatedValue& b) {
  return ValueOps::binary(BinaryOp::kMul, {ValueOps::constant(b, a), b.loc}, b.value);
}
Value operator/(double a, const LocatedValue& b) {
  return ValueOps::binary(BinaryOp::kDiv, {ValueOps::constant(b, a), b.loc}, b.value);
}
Value operator-(const LocatedValue& a) { return ValueOps::unary(UnaryOp::kNeg, a); }
Value operator<(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kLt, a, b);
}
Value operator<=(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kLe, a, b);
}
Value operator>(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kGt, a, b);
}
Value operator>=(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kGe, a, b);
}
Value operator==(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kEq, a, b);
}
Value operator!=(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kNe, a, b);
}
Value operator<(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kLt, a, ValueOps::constant(a, b));
}
Value operator<=(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kLe, a, ValueOps::constant(a, b));
}
Value operator>(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kGt, a, ValueOps::constant(a, b));
}
Value operator>=(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kGe, a, ValueOps::constant(a, b));
}
Value operator==(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kEq, a, ValueOps::constant(a, b));
}
Value operator!=(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kNe, a, ValueOps::constant(a, b));
}
Value operator&&(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kAnd, a, b);
}
Value operator||(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kOr, a, b);
}
Value operator!(const LocatedValue& a) { return ValueOps::unary(UnaryOp::kNot, a); }
Value maximum(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kMax, a, b);
}
Value minimum(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kMin, a, b);
}
Value maximum(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kMax, a, ValueOps::constant(a, b));
}
Value minimum(const LocatedValue& a, double b) {
  return ValueOps::binary(BinaryOp::kMin, a, ValueOps::constant(a, b));
}

Value where(const LocatedValue& condition, const Value& then, const Value& otherwise) {
  const Value& c = condition.value;
  ValueOps::at(c, condition.loc);
  ValueType type = ValueOps::broadcast_shape(then, otherwise, then.dtype());
  if (c.rows() > type.rows) type.rows = c.rows();
  if (c.cols() > type.cols) type.cols = c.cols();
  return ValueOps::emit(OpCode::kWhere, type, {&c, &then, &otherwise}, condition.loc);
}

Value where(const LocatedValue& condition, const Value& then, double otherwise) {
  return where(condition, then, ValueOps::constant({then, condition.loc}, otherwise));
}

Value abs(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kAbs, v); }
Value exp(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kExp, v); }
Value exp2(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kExp2, v); }
Value log(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kLog, v); }
Value sqrt(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kSqrt, v); }
Value rsqrt(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kRsqrt, v); }
Value recip(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kRecip, v); }
Value tanh(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kTanh, v); }
Value sigmoid(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kSigmoid, v); }
Value silu(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kSilu, v); }
Value sin(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kSin, v); }
Value cos(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kCos, v); }
Value floor(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kFloor, v); }
Value round(const LocatedValue& v) { return ValueOps::unary(UnaryOp::kRound, v); }

Value cast(const LocatedValue& v, DType dtype) {
  const ValueType& from = v.value.type();
  if (from.dtype == dtype) return v.value;
  return ValueOps::emit(OpCode::kCast, {dtype, from.rows, from.cols}, {&v.value}, v.loc);
}

Value copy(const LocatedValue& v) {
  return ValueOps::emit(OpCode::kCopyValue, v.value.type(), {&v.value}, v.loc);
}

Value broadcast(const LocatedValue& v, std::int64_t rows, std::int64_t cols) {
  return ValueOps::emit(OpCode::kBroadcast, {v.value.dtype(), rows, cols}, {&v.value}, v.loc);
}

Value columns(const LocatedValue& v, std::int64_t first, std::int64_t cols) {
  ValueType type{v.value.dtype(), v.value.rows(), cols};
  Value part = ValueOps::emit(OpCode::kColumns, type, {&v.value}, v.loc);
  ValueOps::last(ValueOps::builder(v.value)).exprs = {first};
  return part;
}

Value row_sum(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kSum, 1, v); }
Value row_max(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kMax, 1, v); }
Value row_min(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kMin, 1, v); }
Value row_argmax(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kArgMax, 1, v); }
Value col_sum(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kSum, 0, v); }
Value col_max(const LocatedValue& v) { return ValueOps::reduce(ReduceOp::kMax, 0, v); }

Value dot(const LocatedValue& acc, const Value& a, const Value& b) {
  return ValueOps::emit(OpCode::kDot, acc.value.type(), {&acc.value, &a, &b}, acc.loc);
}

Value dot_and_row_sums(const LocatedValue& acc, const Value& a, const Value& b) {
  return ValueOps::emit(OpCode::kDot, {DType::kF32, a.rows(), b.cols() + kSumColumns},
                        {&acc.value, &a, &b}, acc.loc);
}

Value dot(const LocatedValue& acc, const Value& a, const Value& b, const Expr& rows) {
  Value sum = dot(acc, a, b);
  bool all = rows.is_const() && rows.const_value() >= a.rows();
  if (!all) ValueOps::last(ValueOps::builder(acc.value)).exprs = {rows};
  return sum;
}

Value dot_of_columns(const LocatedValue& acc, const Value& a, const Value& b, const Expr& columns) {
  Value sum = dot(acc, a, b);
  bool all = columns.is_const() && columns.const_value() >= b.cols();
  if (!all) ValueOps::last(ValueOps::builder(acc.value)).exprs = {Expr(a.rows()), columns};
  return sum;
}

Value dot_scaled(const LocatedValue& acc, const Value& a, const Value& b, const DotScales& scales) {
  return ValueOps::emit(OpCode::kDotScaled, acc.value.type(),
                        {&acc.value, &a, &b, &scales.a, &scales.b}, acc.loc);
}

}  // namespace stretto
