#include <algorithm>

#include "stretto/ir/verifier_impl.h"

namespace stretto {
namespace {

bool is_comparison(BinaryOp op) { return op >= BinaryOp::kLt && op <= BinaryOp::kGe; }
bool is_logic(BinaryOp op) { return op == BinaryOp::kAnd || op == BinaryOp::kOr; }

}  // namespace

const ValueType& TypeChecker::operand(std::size_t i) const {
  return place_.agent.values[static_cast<std::size_t>(op_.operands[i])];
}

const ValueType& TypeChecker::result() const {
  return place_.agent.values[static_cast<std::size_t>(op_.result)];
}

const Pipe& TypeChecker::pipe() const {
  return place_.role->pipes[static_cast<std::size_t>(op_.symbol)];
}

ValueType TypeChecker::region_type(const Region& r) const {
  const Tensor& tensor = place_.program.tensors[static_cast<std::size_t>(r.tensor)];
  return {tensor.dtype, r.rows, r.cols};
}

void TypeChecker::need_result(const ValueType& expected) {
  const ValueType& actual = result();
  require(actual == expected, "register ${} is {}, the result is {}", op_.result, describe(actual),
          describe(expected));
}

// The common shape of the operands [first, last), where 1 stretches to any size.
ValueType TypeChecker::broadcast_type(DType dtype, std::size_t first, std::size_t last) {
  ValueType type{dtype, 1, 1};
  for (std::size_t i = first; i < last; ++i) {
    type.rows = std::max(type.rows, operand(i).rows);
    type.cols = std::max(type.cols, operand(i).cols);
  }
  for (std::size_t i = first; i < last; ++i) {
    const ValueType& v = operand(i);
    require((v.rows == 1 || v.rows == type.rows) && (v.cols == 1 || v.cols == type.cols),
            "operand {} is {}, which does not broadcast to [{}, {}]", i, describe(v), type.rows,
            type.cols);
  }
  return type;
}

void TypeChecker::check() {
  switch (op_.code) {
    case OpCode::kIota: {
      const ValueType& v = result();
      require(op_.axis == 0 || op_.axis == 1, "axis {}, need 0 or 1", op_.axis);
      return need_result(op_.axis == 0 ? ValueType{DType::kI32, v.rows, 1}
                                       : ValueType{DType::kI32, 1, v.cols});
    }
    case OpCode::kSplat:
      if (float_scalar(place_.program, op_.exprs[0]) != nullptr) {
        return need_result({DType::kF32, 1, 1});
      }
      return need_result({result().dtype, 1, 1});
    case OpCode::kLoad:
    case OpCode::kLoadPacket:
      return need_result(region_type(*op_.region));
    case OpCode::kLoadRows:
      row_access();
      return need_result(region_type(*op_.region));
    case OpCode::kDot:
    case OpCode::kDotScaled:
    case OpCode::kDotAsync:
      return dot();
    case OpCode::kUnary:
      return unary();
    case OpCode::kBinary:
      return binary();
    case OpCode::kWhere:
      return where();
    case OpCode::kCast:
      return need_result({result().dtype, operand(0).rows, operand(0).cols});
    case OpCode::kTranspose:
      return need_result({operand(0).dtype, operand(0).cols, operand(0).rows});
    case OpCode::kBroadcast: {
      const ValueType& v = result();
      require((operand(0).rows == 1 || operand(0).rows == v.rows) &&
                  (operand(0).cols == 1 || operand(0).cols == v.cols),
              "{} does not broadcast to {}", describe(operand(0)), describe(v));
      return need_result({operand(0).dtype, v.rows, v.cols});
    }
    case OpCode::kReduce:
      return reduce();
    case OpCode::kCopyValue:
      return need_result(operand(0));
    case OpCode::kColumns:
      return columns();
    case OpCode::kStoreRows:
      row_access();
      return store();
    case OpCode::kStore:
    case OpCode::kReduceStore:
    case OpCode::kStorePacket:
      return store();
    case OpCode::kCopy:
      return copy();
    case OpCode::kPipePut: {
      const Pipe& p = pipe();
      if (!op_.operands.empty()) row_access();
      return require(region_type(*op_.region) == p.type, "the region is {}, pipe '{}' carries {}",
                     describe(region_type(*op_.region)), p.name, describe(p.type));
    }
    case OpCode::kPipeFill:
      return fill();
    case OpCode::kPipeGet:
      return need_result(pipe().type);
    default:
      return;
  }
}

void TypeChecker::fill() {
  const Pipe& p = pipe();
  const ValueType& value = operand(0);
  const Expr& col = op_.exprs[0];
  bool inside = col.is_const() && col.const_value() >= 0 && p.type.cols <= value.cols &&
                col.const_value() <= value.cols - p.type.cols;
  require(inside && value.dtype == p.type.dtype && value.rows == p.type.rows,
          "the value is {}, no columns of it are pipe '{}''s {}", describe(value), p.name,
          describe(p.type));
}

void TypeChecker::columns() {
  const ValueType& to = result();
  const ValueType& from = operand(0);
  const Expr& col = op_.exprs[0];
  require(col.is_const() && col.const_value() >= 0 && to.cols <= from.cols &&
              col.const_value() <= from.cols - to.cols,
          "the value is {}, the {} columns asked for are none of it", describe(from), to.cols);
  require(op_.result != op_.operands[0], "register ${} is the value and the result", op_.result);
  need_result({from.dtype, from.rows, to.cols});
}

void TypeChecker::dot() {
  const ValueType &acc = operand(0), &a = operand(1), &b = operand(2);
  require(is_float(a.dtype) && is_float(b.dtype), "factors are {} and {}, need floats", describe(a),
          describe(b));
  require(a.cols == b.rows, "factors are {} and {}, the inner sizes differ", describe(a),
          describe(b));
  require(op_.result != op_.operands[1] && op_.result != op_.operands[2],
          "register ${} is a factor and the result", op_.result);
  bool doubles = a.dtype == DType::kF64;
  require(doubles == (b.dtype == DType::kF64), "factors are {} and {}, need both in f64 or neither",
          describe(a), describe(b));
  ValueType product{sum_dtype(a.dtype), a.rows, b.cols};
  bool sums = op_.code != OpCode::kDotScaled && !doubles && op_.exprs.empty();
  if (sums && acc.cols == b.cols + kSumColumns) product.cols = acc.cols;
  require(acc == product, "the accumulator is {}, the product {}", describe(acc),
          describe(product));
  if (op_.code == OpCode::kDotScaled) {
    require(!doubles, "factors with scales are {}, need floats of 32 bits or fewer", describe(a));
    ValueType scale_a{DType::kF32, a.rows, 1}, scale_b{DType::kF32, 1, b.cols};
    require(operand(3) == scale_a && operand(4) == scale_b, "scales are {} and {}, need {} and {}",
            describe(operand(3)), describe(operand(4)), describe(scale_a), describe(scale_b));
  }
  need_result(product);
}

void TypeChecker::unary() {
  bool is_not = op_.unary == UnaryOp::kNot;
  require(is_not ? operand(0).dtype == DType::kBool : is_float(operand(0).dtype),
          "{} of {}, need {}", name(op_.unary), describe(operand(0)), is_not ? "bool" : "a float");
  need_result(operand(0));
}

void TypeChecker::binary() {
  DType a = operand(0).dtype, b = operand(1).dtype;
  const char* op_name = name(op_.binary);
  require(a == b, "{} of {} and {}, need one dtype", op_name, short_name(a), short_name(b));
  if (is_logic(op_.binary)) {
    require(a == DType::kBool, "{} of {}, need bool", op_name, short_name(a));
  } else if (!is_comparison(op_.binary)) {
    require(a != DType::kBool, "{} of bool, need numbers", op_name);
  }
  need_result(broadcast_type(is_comparison(op_.binary) ? DType::kBool : a, 0, 2));
}

void TypeChecker::where() {
  require(operand(0).dtype == DType::kBool, "the condition is {}, need bool", describe(operand(0)));
  require(operand(1).dtype == operand(2).dtype, "the choices are {} and {}, need one dtype",
          short_name(operand(1).dtype), short_name(operand(2).dtype));
  need_result(broadcast_type(operand(1).dtype, 0, 3));
}

void TypeChecker::reduce() {
  const ValueType& v = operand(0);
  require(op_.axis == 0 || op_.axis == 1, "axis {}, need 0 or 1", op_.axis);
  bool wide = v.dtype == DType::kF32 || v.dtype == DType::kF64;
  require(wide || v.dtype == DType::kI32, "{} of {}, need f32, f64 or i32", name(op_.reduce),
          describe(v));
  DType dtype = op_.reduce == ReduceOp::kArgMax ? DType::kI32 : v.dtype;
  need_result(op_.axis == 1 ? ValueType{dtype, v.rows, 1} : ValueType{dtype, 1, v.cols});
}

// load_rows and store_rows: the last operand chooses one row of the tensor per row of the tile.
void TypeChecker::row_access() {
  const ValueType& rows = operand(op_.operands.size() - 1);
  require(op_.region->row_dim >= 0, "the region has no row dimension to choose along");
  ValueType expected{DType::kI32, op_.region->rows, 1};
  require(rows == expected, "row indices are {}, need {}", describe(rows), describe(expected));
}

void TypeChecker::store() {
  const ValueType& v = operand(0);
  ValueType region = region_type(*op_.region);
  require(v.rows == region.rows && v.cols == region.cols, "the value is {}, the region {}",
          describe(v), describe(region));
  require(is_float(v.dtype) == is_float(region.dtype), "{} cannot be stored as {}; cast it",
          short_name(v.dtype), short_name(region.dtype));
  require(op_.code != OpCode::kReduceStore || region.dtype != DType::kBool,
          "reduce_store into bool");
}

void TypeChecker::copy() {
  ValueType from = region_type(*op_.region), to = region_type(*op_.region2);
  require(from == to, "copy of {} to {}", describe(from), describe(to));
}

}  // namespace stretto
