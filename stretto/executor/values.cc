#include "stretto/executor/values.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/reduce.h"
#include "stretto/executor/register_tile.h"

namespace stretto {
namespace {

// A square tile that replaces itself.
void transpose_in_place(const Register& reg) {
  std::size_t bytes = size_bytes(kernels::register_dtype(reg.dtype));
  auto* data = reg.as<std::byte>();
  auto n = static_cast<std::size_t>(reg.rows);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t c = 0; c < r; ++c) {
      std::byte* one = data + (r * n + c) * bytes;
      std::swap_ranges(one, one + bytes, data + (c * n + r) * bytes);
    }
  }
}

TileRef columns_of(TileRef tile, std::int64_t first, std::int64_t cols) {
  auto size = static_cast<std::int64_t>(size_bytes(tile.dtype));
  tile.data = static_cast<std::byte*>(tile.data) + first * tile.col_stride * size;
  tile.cols = cols;
  return tile;
}

bool is_narrow(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF8E4M3;
}

bool fits_f32(DType dtype) { return dtype == DType::kF32 || size_bytes(dtype) == 1; }

// A cast to a narrow float from what f32 may not hold: rounded once, not to f32 first.
void cast_to_narrow(DType dtype, const TileRef& to, const TileRef& from) {
  AlignedBytes bytes =
      allocate_aligned(static_cast<std::size_t>(to.rows * to.cols) * size_bytes(dtype));
  TileRef narrow{dtype, to.rows, to.cols, bytes.get(), to.cols, 1};
  kernels::cast(narrow, from);
  kernels::cast(to, narrow);
}

double splat_value(const Program& program, const Op& op, std::int64_t value) {
  return float_scalar(program, op.exprs[0]) != nullptr ? float_of_scalar(value)
                                                       : static_cast<double>(value);
}

// The kernels list their operations in the IR's order.
template <typename Ir, typename Kernel>
constexpr bool same(Ir ir, Kernel kernel) {
  return static_cast<int>(ir) == static_cast<int>(kernel);
}
static_assert(same(UnaryOp::kNeg, kernels::Unary::kNeg));
static_assert(same(UnaryOp::kTanh, kernels::Unary::kTanh));
static_assert(same(UnaryOp::kNot, kernels::Unary::kNot));
static_assert(same(BinaryOp::kAdd, kernels::Binary::kAdd));
static_assert(same(BinaryOp::kLt, kernels::Binary::kLt));
static_assert(same(BinaryOp::kOr, kernels::Binary::kOr));

void reduce(ReduceOp op, int axis, const TileRef& to, const TileRef& from) {
  bool by_rows = axis == 1;
  switch (op) {
    case ReduceOp::kSum:
      return by_rows ? kernels::row_sum(to, from) : kernels::col_sum(to, from);
    case ReduceOp::kMax:
      return by_rows ? kernels::row_max(to, from) : kernels::col_max(to, from);
    case ReduceOp::kMin:
      return by_rows ? kernels::row_min(to, from) : kernels::col_min(to, from);
    case ReduceOp::kArgMax:
      return by_rows ? kernels::row_argmax(to, from) : kernels::col_argmax(to, from);
  }
}

}  // namespace

void compute_value(const Program& program, const Inst& inst, std::span<Register> regs,
                   std::int64_t index) {
  auto in = [&](int i) { return tile_of(regs[static_cast<std::size_t>(inst.operands[i])]); };
  Register& out = writable(regs[static_cast<std::size_t>(inst.result)]);
  TileRef to = tile_of(out);
  switch (inst.code) {
    case OpCode::kFill:
      kernels::fill(to, inst.op->value);
      break;
    case OpCode::kIota:
      kernels::iota(to, index, inst.op->axis);
      break;
    case OpCode::kSplat:
      kernels::fill(to, splat_value(program, *inst.op, index));
      break;
    case OpCode::kUnary:
      kernels::unary(static_cast<kernels::Unary>(inst.op->unary), to, in(0));
      break;
    case OpCode::kBinary:
      kernels::binary(static_cast<kernels::Binary>(inst.op->binary), to, in(0), in(1));
      break;
    case OpCode::kWhere:
      kernels::where(to, in(0), in(1), in(2));
      break;
    case OpCode::kCast:
      if (is_narrow(out.dtype) && !fits_f32(in(0).dtype)) {
        return cast_to_narrow(out.dtype, to, in(0));
      }
      kernels::cast(to, in(0));
      break;
    case OpCode::kCopyValue:
    case OpCode::kBroadcast:
      kernels::cast(to, in(0));
      break;
    case OpCode::kColumns:
      kernels::cast(to, columns_of(in(0), index, to.cols));
      break;
    case OpCode::kTranspose:
      if (to.data == in(0).data) {
        transpose_in_place(out);
      } else {
        kernels::transpose(to, in(0));
      }
      break;
    case OpCode::kReduce:
      reduce(inst.op->reduce, inst.op->axis, to, in(0));
      break;
    default:
      throw InternalError("executor: an operation without an implementation");
  }
  if (is_narrow(out.dtype)) kernels::round_tile(to, out.dtype);
}

}  // namespace stretto
