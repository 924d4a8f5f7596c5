#include "stretto/predict/cost.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto::predict {
namespace {

const ValueType& type_of(std::span<const ValueType> values, int reg) {
  return values[static_cast<std::size_t>(reg)];
}

double elements(const ValueType& type) { return static_cast<double>(type.rows * type.cols); }

// In instructions per element. The special function unit has an eighth of the lanes of the others.
double unary_cost(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
    case UnaryOp::kAbs:
    case UnaryOp::kNot:
    case UnaryOp::kFloor:
    case UnaryOp::kRound:
      return 1;
    case UnaryOp::kExp2:
    case UnaryOp::kRsqrt:
    case UnaryOp::kRecip:
    case UnaryOp::kSqrt:
    case UnaryOp::kTanh:
      return 8;
    default:
      return 12;
  }
}

void add_product(const Op& op, std::span<const ValueType> values, const Machine& machine,
                 Cost& cost) {
  const ValueType &a = type_of(values, op.operands[1]), &b = type_of(values, op.operands[2]);
  auto rate = machine.tensor_flops.find(a.dtype);
  if (rate == machine.tensor_flops.end()) {
    throw UserError(
        fmt::format("machine {}: tensor: tflops: no rate for {}, which {}:{} multiplies",
                    machine.name, name(a.dtype), op.loc.file, op.loc.line));
  }
  const ValueType& sum = type_of(values, op.result);  // of a's rows, too, where it is wider
  double flops = 2.0 * static_cast<double>(a.rows * a.cols * std::max(b.cols, sum.cols));
  cost.tensor += flops / rate->second;
}

}  // namespace

RemoteBytes& Cost::to(int rank) {
  for (RemoteBytes& r : remote) {
    if (r.rank == rank) return r;
  }
  return remote.emplace_back(RemoteBytes{.rank = rank});
}

void Cost::add(const Cost& other, double times) {
  tensor += other.tensor * times;
  vector_ops += other.vector_ops * times;
  num_loads += other.num_loads * times;
  remote_loads += other.remote_loads * times;
  num_stores += other.num_stores * times;
  num_steps += other.num_steps * times;
  num_copies += other.num_copies * times;
  read += other.read * times;
  written += other.written * times;
  packets += other.packets * times;
  picked += other.picked * times;
  outside += other.outside * times;
  for (const RemoteBytes& r : other.remote) {
    RemoteBytes& mine = to(r.rank);
    mine.read += r.read * times;
    mine.written += r.written * times;
  }
}

bool Cost::is_zero() const {
  return tensor + vector_ops + num_loads + remote_loads + num_stores + num_steps + num_copies +
                 read + written ==
             0 &&
         remote.empty();
}

void add_arithmetic(const Op& op, std::span<const ValueType> values, const Machine& machine,
                    Cost& cost) {
  switch (op.code) {
    case OpCode::kDot:
    case OpCode::kDotScaled:
    case OpCode::kDotAsync:
      return add_product(op, values, machine, cost);
    case OpCode::kUnary:
      cost.vector_ops += elements(type_of(values, op.result)) * unary_cost(op.unary);
      return;
    case OpCode::kBinary:
      cost.vector_ops +=
          elements(type_of(values, op.result)) * (op.binary == BinaryOp::kDiv ? 10 : 1);
      return;
    case OpCode::kReduce:
      cost.vector_ops += elements(type_of(values, op.operands[0]));
      return;
    case OpCode::kWhere:
    case OpCode::kCast:
    case OpCode::kIota:
      cost.vector_ops += elements(type_of(values, op.result));
      return;
    default:
      return;
  }
}

}  // namespace stretto::predict
