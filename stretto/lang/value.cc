#include "stretto/lang/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
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

  static Value unary(UnaryOp op, const Value& v, const Loc& loc) {
    Value result = emit(OpCode::kUnary, v.type(), {&v}, loc);
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

  static Value reduce(ReduceOp op, int axis, const Value& v, const Loc& loc) {
    ValueType type{op == ReduceOp::kArgMax ? DType::kI32 : v.dtype(), axis == 1 ? v.rows() : 1,
                   axis == 1 ? 1 : v.cols()};
    Value result = emit(OpCode::kReduce, type, {&v}, loc);
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
Value operator-(const LocatedValue& a) { return ValueOps::unary(UnaryOp::kNeg, a.value, a.loc); }
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
Value operator&&(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kAnd, a, b);
}
Value operator||(const LocatedValue& a, const Value& b) {
  return ValueOps::binary(BinaryOp::kOr, a, b);
}
Value operator!(const LocatedValue& a) { return ValueOps::unary(UnaryOp::kNot, a.value, a.loc); }
Value maximum(const Value& a, const Value& b, Loc loc) {
  return ValueOps::binary(BinaryOp::kMax, {a, loc}, b);
}
Value minimum(const Value& a, const Value& b, Loc loc) {
  return ValueOps::binary(BinaryOp::kMin, {a, loc}, b);
}

Value where(const Value& condition, const Value& then, const Value& otherwise, Loc loc) {
  ValueOps::at(then, loc);
  ValueType type = ValueOps::broadcast_shape(then, otherwise, then.dtype());
  if (condition.rows() > type.rows) type.rows = condition.rows();
  if (condition.cols() > type.cols) type.cols = condition.cols();
  return ValueOps::emit(OpCode::kWhere, type, {&condition, &then, &otherwise}, loc);
}

Value abs(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kAbs, v, loc); }
Value exp(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kExp, v, loc); }
Value exp2(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kExp2, v, loc); }
Value log(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kLog, v, loc); }
Value sqrt(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kSqrt, v, loc); }
Value rsqrt(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kRsqrt, v, loc); }
Value recip(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kRecip, v, loc); }
Value tanh(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kTanh, v, loc); }
Value sigmoid(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kSigmoid, v, loc); }
Value silu(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kSilu, v, loc); }
Value sin(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kSin, v, loc); }
Value cos(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kCos, v, loc); }
Value floor(const Value& v, Loc loc) { return ValueOps::unary(UnaryOp::kFloor, v, loc); }

Value cast(const Value& v, DType dtype, Loc loc) {
  if (v.dtype() == dtype) return v;
  return ValueOps::emit(OpCode::kCast, {dtype, v.rows(), v.cols()}, {&v}, loc);
}

Value copy(const Value& v, Loc loc) {
  return ValueOps::emit(OpCode::kCopyValue, v.type(), {&v}, loc);
}

Value broadcast(const Value& v, std::int64_t rows, std::int64_t cols, Loc loc) {
  return ValueOps::emit(OpCode::kBroadcast, {v.dtype(), rows, cols}, {&v}, loc);
}

Value row_sum(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kSum, 1, v, loc); }
Value row_max(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kMax, 1, v, loc); }
Value row_min(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kMin, 1, v, loc); }
Value row_argmax(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kArgMax, 1, v, loc); }
Value col_sum(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kSum, 0, v, loc); }
Value col_max(const Value& v, Loc loc) { return ValueOps::reduce(ReduceOp::kMax, 0, v, loc); }

Value dot(const Value& acc, const Value& a, const Value& b, Loc loc) {
  return ValueOps::emit(OpCode::kDot, acc.type(), {&acc, &a, &b}, loc);
}

Value dot_scaled(const Value& acc, const Value& a, const Value& b, const DotScales& scales,
                 Loc loc) {
  return ValueOps::emit(OpCode::kDotScaled, acc.type(), {&acc, &a, &b, &scales.a, &scales.b}, loc);
}

}  // namespace stretto
