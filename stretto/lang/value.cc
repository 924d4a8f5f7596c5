#include "stretto/lang/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto {

// What the free functions need of the builder.
struct ValueOps {
  static ProgramBuilder& builder(const Value& v) {
    if (!v.register_)
      throw UserError("tile language: a value is used before anything was assigned to it");
    return *v.register_->builder;
  }

  static Value emit(OpCode code, const ValueType& type, std::vector<const Value*> operands) {
    return builder(*operands[0]).emit_value(code, type, std::move(operands));
  }

  static Op& last(ProgramBuilder& builder) { return builder.blocks_.back().block->back(); }

  static Value unary(UnaryOp op, const Value& v) {
    Value result = emit(OpCode::kUnary, v.type(), {&v});
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

  static Value binary(BinaryOp op, const Value& a, const Value& b) {
    bool compares = op >= BinaryOp::kLt && op <= BinaryOp::kGe;
    ValueType type = broadcast_shape(a, b, compares ? DType::kBool : a.dtype());
    Value result = emit(OpCode::kBinary, type, {&a, &b});
    last(builder(a)).binary = op;
    return result;
  }

  static Value constant(const Value& like, double value) {
    return builder(like).full(like.dtype(), 1, 1, value);
  }

  static Value reduce(ReduceOp op, int axis, const Value& v) {
    ValueType type{op == ReduceOp::kArgMax ? DType::kI32 : v.dtype(), axis == 1 ? v.rows() : 1,
                   axis == 1 ? 1 : v.cols()};
    Value result = emit(OpCode::kReduce, type, {&v});
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
  if (!register_)
    throw UserError("tile language: a value is used before anything was assigned to it");
  return register_->type;
}

Value Value::T() const {
  return ValueOps::emit(OpCode::kTranspose, {dtype(), cols(), rows()}, {this});
}

Value operator+(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kAdd, a, b); }
Value operator-(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kSub, a, b); }
Value operator*(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kMul, a, b); }
Value operator/(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kDiv, a, b); }
Value operator+(const Value& a, double b) { return a + ValueOps::constant(a, b); }
Value operator-(const Value& a, double b) { return a - ValueOps::constant(a, b); }
Value operator*(const Value& a, double b) { return a * ValueOps::constant(a, b); }
Value operator/(const Value& a, double b) { return a / ValueOps::constant(a, b); }
Value operator-(const Value& a) { return ValueOps::unary(UnaryOp::kNeg, a); }
Value operator<(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kLt, a, b); }
Value operator<=(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kLe, a, b); }
Value operator>(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kGt, a, b); }
Value operator>=(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kGe, a, b); }
Value operator==(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kEq, a, b); }
Value operator!=(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kNe, a, b); }
Value operator&&(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kAnd, a, b); }
Value operator||(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kOr, a, b); }
Value operator!(const Value& a) { return ValueOps::unary(UnaryOp::kNot, a); }
Value maximum(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kMax, a, b); }
Value minimum(const Value& a, const Value& b) { return ValueOps::binary(BinaryOp::kMin, a, b); }

Value where(const Value& condition, const Value& then, const Value& otherwise) {
  ValueType type = ValueOps::broadcast_shape(then, otherwise, then.dtype());
  if (condition.rows() > type.rows) type.rows = condition.rows();
  if (condition.cols() > type.cols) type.cols = condition.cols();
  return ValueOps::emit(OpCode::kWhere, type, {&condition, &then, &otherwise});
}

Value abs(const Value& v) { return ValueOps::unary(UnaryOp::kAbs, v); }
Value exp(const Value& v) { return ValueOps::unary(UnaryOp::kExp, v); }
Value exp2(const Value& v) { return ValueOps::unary(UnaryOp::kExp2, v); }
Value log(const Value& v) { return ValueOps::unary(UnaryOp::kLog, v); }
Value sqrt(const Value& v) { return ValueOps::unary(UnaryOp::kSqrt, v); }
Value rsqrt(const Value& v) { return ValueOps::unary(UnaryOp::kRsqrt, v); }
Value recip(const Value& v) { return ValueOps::unary(UnaryOp::kRecip, v); }
Value tanh(const Value& v) { return ValueOps::unary(UnaryOp::kTanh, v); }
Value sigmoid(const Value& v) { return ValueOps::unary(UnaryOp::kSigmoid, v); }
Value silu(const Value& v) { return ValueOps::unary(UnaryOp::kSilu, v); }
Value sin(const Value& v) { return ValueOps::unary(UnaryOp::kSin, v); }
Value cos(const Value& v) { return ValueOps::unary(UnaryOp::kCos, v); }
Value floor(const Value& v) { return ValueOps::unary(UnaryOp::kFloor, v); }

Value cast(const Value& v, DType dtype) {
  if (v.dtype() == dtype) return v;
  return ValueOps::emit(OpCode::kCast, {dtype, v.rows(), v.cols()}, {&v});
}

Value copy(const Value& v) { return ValueOps::emit(OpCode::kCopyValue, v.type(), {&v}); }

Value broadcast(const Value& v, std::int64_t rows, std::int64_t cols) {
  return ValueOps::emit(OpCode::kBroadcast, {v.dtype(), rows, cols}, {&v});
}

Value row_sum(const Value& v) { return ValueOps::reduce(ReduceOp::kSum, 1, v); }
Value row_max(const Value& v) { return ValueOps::reduce(ReduceOp::kMax, 1, v); }
Value row_min(const Value& v) { return ValueOps::reduce(ReduceOp::kMin, 1, v); }
Value row_argmax(const Value& v) { return ValueOps::reduce(ReduceOp::kArgMax, 1, v); }
Value col_sum(const Value& v) { return ValueOps::reduce(ReduceOp::kSum, 0, v); }
Value col_max(const Value& v) { return ValueOps::reduce(ReduceOp::kMax, 0, v); }

Value dot(const Value& acc, const Value& a, const Value& b) {
  return ValueOps::emit(OpCode::kDot, acc.type(), {&acc, &a, &b});
}

Value dot_scaled(const Value& acc, const Value& a, const Value& b, const DotScales& scales) {
  return ValueOps::emit(OpCode::kDotScaled, acc.type(), {&acc, &a, &b, &scales.a, &scales.b});
}

}  // namespace stretto
