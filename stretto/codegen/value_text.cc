// Values: fills, elementwise operations, reductions, transposes.
#include <algorithm>
#include <cmath>

#include "stretto/base/errors.h"
#include "stretto/codegen/agent_writer.h"

namespace stretto {
namespace {

const char* functor(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return "Neg";
    case UnaryOp::kAbs:
      return "Abs";
    case UnaryOp::kExp:
      return "Exp";
    case UnaryOp::kExp2:
      return "Exp2";
    case UnaryOp::kLog:
      return "Log";
    case UnaryOp::kSqrt:
      return "Sqrt";
    case UnaryOp::kRsqrt:
      return "Rsqrt";
    case UnaryOp::kRecip:
      return "Recip";
    case UnaryOp::kTanh:
      return "Tanh";
    case UnaryOp::kSigmoid:
      return "Sigmoid";
    case UnaryOp::kSilu:
      return "Silu";
    case UnaryOp::kSin:
      return "Sin";
    case UnaryOp::kCos:
      return "Cos";
    case UnaryOp::kFloor:
      return "Floor";
    case UnaryOp::kRound:
      return "Round";
    case UnaryOp::kNot:
      return "Not";
  }
  throw InternalError("unknown unary operation");
}

std::string float_text(double v) {
  if (std::isnan(v)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(v)) return v > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  std::string text = fmt::format("{:.9g}", v);
  if (text.find_first_of(".e") == std::string::npos) text += ".";
  return text + "f";
}

bool is_byte(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }

// As CPU ranks have it: an integer is truncated and brought into range, and not rounded to a float.
std::string constant_text(DType dtype, double v) {
  if (dtype != DType::kI32 && !is_byte(dtype)) return float_text(v);
  std::int32_t bits = 0;
  store_element(dtype, &bits, v);
  return fmt::format("i32({})", static_cast<std::int64_t>(load_element(dtype, &bits)));
}

}  // namespace

const char* functor(BinaryOp op) {
  static constexpr const char* kNames[] = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Lt",
                                           "Le",  "Eq",  "Ne",  "Gt",  "Ge",  "And", "Or"};
  return kNames[static_cast<int>(op)];
}

std::string AgentWriter::scratch_text(DType dtype) const {
  return fmt::format("reinterpret_cast<{}*>(smem + {})", dtype == DType::kI32 ? "i32" : "float",
                     plan_.scratch[agent_idx()]);
}

void AgentWriter::value(const Op& op) {
  auto in = [&](std::size_t i) { return op.operands[i]; };
  bool here = op.result >= 0 && !value_plan(op.result).from_slot;
  switch (op.code) {
    case OpCode::kFill:
      if (here) {
        line("fill(v{}, {});", op.result, constant_text(type(op.result).dtype, op.value));
      }
      return;
    case OpCode::kSplat:
      if (float_scalar(program_, op.exprs[0]) != nullptr) {
        line("fill(v{}, __int_as_float({}));", op.result, expr(op.exprs[0]));
      } else if (DType dtype = type(op.result).dtype; is_byte(dtype)) {
        line("fill(v{}, i32(saturated<{}>(i32({}))));", op.result, element_text(dtype),
             expr(op.exprs[0]));
      } else {
        line("fill(v{}, {});", op.result, expr(op.exprs[0]));
      }
      return;
    case OpCode::kIota: {
      bool rows = op.axis == 0;
      std::string first = expr(op.exprs[0]);
      if (rows && site_.role->resource.cluster_size > 1 && type(op.result).rows > 1) {
        first += fmt::format(" + cta * {}", values_.rows_here(type(op.result)));
      }
      line("iota_{}<L{}>(v{}, team, {});", rows ? "rows" : "cols", op.result, op.result, first);
      return;
    }
    case OpCode::kUnary:
      line("map(v{}, v{}, {}());", op.result, in(0), functor(op.unary));
      return;
    case OpCode::kBinary:
      if (rescales(op)) return line("rescale(v{}, v{}, v{});", op.result, in(0), in(1));
      line("map(v{}, v{}, v{}, {}());", op.result, in(0), in(1), functor(op.binary));
      return;
    case OpCode::kWhere:
      line("where(v{}, v{}, v{}, v{});", op.result, in(0), in(1), in(2));
      return;
    case OpCode::kCast:
    case OpCode::kBroadcast:
    case OpCode::kCopyValue:
      line("assign(v{}, v{});", op.result, in(0));
      if (pinned_factor(op)) line("hold(v{}, {});", op.result, scratch_text(DType::kF32));
      return;
    case OpCode::kReduce:
      return reduce(op);
    case OpCode::kColumns:
      return columns(op);
    case OpCode::kTranspose:
      return transpose(op);
    default:
      throw InternalError(fmt::format("no device text for operation {}", int(op.code)));
  }
}

// Eight columns of a fragment lie over four threads, two in each.
void AgentWriter::columns(const Op& op) {
  constexpr std::int64_t kColumns = 8, kSlots = 2;
  std::int64_t first = op.exprs[0].const_value();
  if (!value_plan(op.result).fragment || first % kColumns != 0) {
    refuse(op.loc, "columns of what no tensor core made, or not from a multiple of 8 on");
  }
  line("columns<{}>(v{}, v{});", first / kColumns * kSlots, op.result, op.operands[0]);
}

void AgentWriter::reduce(const Op& op) {
  int from = op.operands[0];
  std::string scratch = scratch_text(type(from).dtype);
  if (op.reduce == ReduceOp::kArgMax) {
    line("arg_max_columns<L{}>(v{}, v{}, team, {});", from, op.result, from, scratch);
    return;
  }
  const char* f = op.reduce == ReduceOp::kSum ? "Add" : op.reduce == ReduceOp::kMax ? "Max" : "Min";
  line("reduce_{}{}<L{}>(v{}, v{}, team, {}, {}());", op.axis == 1 ? "columns" : "rows",
       pinned(op) ? "_held" : "", from, op.result, from, scratch, f);
}

// Through shared memory, or where it lies in a slot already.
void AgentWriter::transpose(const Op& op) {
  const ValuePlan& view = value_plan(op.result);
  if (view.from_slot) {
    if (!view.used_elsewhere) return;
    line("load_smem{}<L{}>(v{}, s{}, team);", view.transposed ? "_transposed" : "", op.result,
         op.result, view.slot_reg);
    let_lanes_part();
    return;
  }
  int from = op.operands[0];
  std::string slot = stage_value(from, plan_.staging.at(&op));
  line("named_barrier_sync(team.barrier, L{}::kThreads);", from);
  line("load_smem_transposed<L{}>(v{}, {}, team);", op.result, op.result, slot);
  line("named_barrier_sync(team.barrier, L{}::kThreads);", from);
}

namespace {

// A product that adds to `sum` and leaves its result in `result`.
bool adds_to(const Block& block, int sum, int result) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    bool product = op.code == OpCode::kDotAsync && op.operands[0] == sum && op.result == result;
    return product || std::any_of(op.bodies.begin(), op.bodies.end(),
                                  [&](const Block& body) { return adds_to(body, sum, result); });
  });
}

}  // namespace

// A sum of products that is scaled by rows before the next is added, as online softmax does.
bool AgentWriter::rescales(const Op& op) const {
  if (op.binary != BinaryOp::kMul) return false;
  const ValueType &sum = type(op.operands[0]), &factors = type(op.operands[1]);
  return sum.rows > 1 && sum.cols > 1 && factors.rows == sum.rows && factors.cols == 1 &&
         factors.dtype == DType::kF32 && adds_to(agent_.body, op.result, op.operands[0]);
}

// Writes a register to shared memory and returns the slot; the caller synchronises before reading.
std::string AgentWriter::stage_value(int reg, std::size_t offset) {
  const ValueType& t = type(reg);
  std::string slot = fmt::format("SmemTile<{}, {}, {}, {}>{{smem + {}}}", element_text(t.dtype),
                                 (t.rows + 7) / 8 * 8, t.cols, swizzle_bytes(t), offset);
  line("store_smem<L{}>({}, v{}, team);", reg, slot, reg);
  return slot;
}

}  // namespace stretto
