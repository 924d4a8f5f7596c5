#include "stretto/codegen/expr_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "stretto/base/errors.h"
#include "stretto/codegen/table_text.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/refuse.h"

namespace stretto {
namespace {

constexpr std::int64_t kMaxFactor = 1024;

void for_each_let(const Block& block, int var, const std::function<void(const Expr&)>& visit) {
  for (const Op& op : block) {
    if (op.code == OpCode::kLet && op.var == var) visit(op.exprs[0]);
    for (const Block& inner : op.bodies) for_each_let(inner, var, visit);
  }
}

// Named intermediates count as unknown.
bool never_negative(const Program& program, const Expr& expr) {
  return stretto::never_negative(program, expr, [](int) { return Expr(); });
}

// What a named intermediate stands for, or where a loop begins; absent where no operation says.
Expr value_in(const Block& block, int var) {
  for (const Op& op : block) {
    if (op.var == var && (op.code == OpCode::kLet || op.code == OpCode::kLoop)) return op.exprs[0];
    for (const Block& inner : op.bodies) {
      if (Expr found = value_in(inner, var); found.has_value()) return found;
    }
  }
  return {};
}

Expr value_in(const Program& program, int var) {
  if (Expr found = value_in(program.on_start.body, var); found.has_value()) return found;
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) {
      if (Expr found = value_in(agent.body, var); found.has_value()) return found;
    }
  }
  return value_in(program.on_end.body, var);
}

// Whether a condition that operations stand under is that `tile` < `count`.
bool guarded(const Block& block, const Expr& tile, const Expr& count) {
  return any_op(block, [&](const Op& op) {
    if (op.code != OpCode::kWhen) return false;
    const ExprNode& n = op.exprs[0].node();
    return n.op == ExprOp::kLt && n.args[0].same(tile) && n.args[1].same(count);
  });
}

// Whether it is a role's tile, of `count`, or what warpgroups that take turns make of it
// (passes/take_turns.h).
bool is_tile(const Program& program, const Expr& tile, const Expr& count) {
  const ExprNode& n = tile.node();
  return std::any_of(program.roles.begin(), program.roles.end(), [&](const Role& role) {
    if (n.op == ExprOp::kVar && n.value == role.tile_var) return role.num_tiles.same(count);
    return n.op != ExprOp::kVar &&
           std::any_of(role.agents.begin(), role.agents.end(),
                       [&](const Agent& agent) { return guarded(agent.body, tile, count); });
  });
}

// The rows from a tile's band on (lang/tile_space.cc): rows - tile / (cols * height) * height, of
// rows * cols tiles. Less than all rows are taken away, as a tile is less than their number.
bool rows_left(const Program& program, const Expr& expr) {
  const ExprNode& left = expr.node();
  if (left.op != ExprOp::kSub || left.args[1].node().op != ExprOp::kMul) return false;
  const ExprNode& above = left.args[1].node();
  const ExprNode& band = above.args[0].node();
  const Expr &rows = left.args[0], &height = above.args[1];
  if (band.op != ExprOp::kFloorDiv || !height.is_const() || height.const_value() < 1) return false;
  const Expr &tile = band.args[0], &of_band = band.args[1];
  Expr cols;
  if (of_band.is_const() && of_band.const_value() % height.const_value() == 0) {
    cols = of_band.const_value() / height.const_value();
  } else if (of_band.node().op == ExprOp::kMul && of_band.node().args[1].same(height)) {
    cols = of_band.node().args[0];
  }
  return cols.has_value() && is_tile(program, tile, rows * cols);
}

// Whether a divisor is shown to be positive; divisors of zero have no quotient. What names stand
// for is looked up, so that only those that may be negative take more than a division.
bool divides_plainly(const Program& program, const Expr& divisor) {
  auto value = [&](int var) { return value_in(program, var); };
  if (stretto::never_negative(program, divisor, value)) return true;
  const ExprNode& n = divisor.node();
  if (n.op == ExprOp::kMin) {
    return divides_plainly(program, n.args[0]) && divides_plainly(program, n.args[1]);
  }
  return rows_left(program, divisor);
}

std::string division_text(const Program& program, const ExprNode& n, const char* of_plain,
                          const char* floored, const char* of_any) {
  const char* f = !divides_plainly(program, n.args[1]) ? of_any
                  : never_negative(program, n.args[0]) ? of_plain
                                                       : floored;
  return fmt::format("{}({}, {})", f, expr_text(program, n.args[0]), expr_text(program, n.args[1]));
}

// A packet has 4 bytes of payload, which bytes and what is wider than that do not fill.
void refuse_stores(const Program& program, const Block& block) {
  for_each_op(block, [&](const Op& op) {
    bool stores = op.code == OpCode::kStore || op.code == OpCode::kStoreRows ||
                  op.code == OpCode::kStorePacket;
    if (!stores) return;
    const Tensor& t = program.tensors[static_cast<std::size_t>(op.region->tensor)];
    bool packs =
        op.code != OpCode::kStorePacket || size_bytes(t.dtype) == 2 || size_bytes(t.dtype) == 4;
    if (!packs) {
      throw UserError(fmt::format("{}:{}: {} cannot be put in packets on GPUs", op.loc.file,
                                  op.loc.line, name(t.dtype)));
    }
  });
}

}  // namespace

const char* element_text(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kF64:
      return "double";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kBool:
      return "bool";
    case DType::kI8:
      return "i8";
  }
  throw InternalError("unknown dtype");
}

void refuse_missing_types(const Program& program) {
  auto missing = [](DType dtype) { return dtype == DType::kF64 || dtype == DType::kI64; };
  refuse_float64(program);
  auto check = [&](const Agent& agent) {
    for (const ValueType& v : agent.values) {
      if (!missing(v.dtype)) continue;
      throw UserError(fmt::format("{}: '{}' has values of {}, {}", program.name, agent.name,
                                  name(v.dtype), kCpuRanksOnly));
    }
    refuse_stores(program, agent.body);
  };
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) check(agent);
  }
  check(program.on_start);
  check(program.on_end);
}

std::string var_text(const Program& program, int var_idx) {
  if (var_idx == 0) return "rank";
  std::string name = program.vars[static_cast<std::size_t>(var_idx)].name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return fmt::format("x{}_{}", var_idx, name);
}

std::string tensor_text(const Program& program, int tensor_idx, const std::string& rank) {
  const int slots = program.tensors[static_cast<std::size_t>(tensor_idx)].num_slots;
  std::string at = fmt::format("p.tensors[{}][{}]", tensor_idx, rank);
  if (slots <= 1) return at;
  std::size_t bytes = storage_bytes(program, tensor_idx) / static_cast<std::size_t>(slots);
  return at + fmt::format(" + epoch % {} * {}", slots, bytes);
}

std::string expr_text(const Program& program, const Expr& expr) {
  if (!expr.has_value()) throw InternalError("an absent expression was emitted");
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return expr_text(program, n.args[i]); };
  auto infix = [&](const char* op) { return fmt::format("({} {} {})", arg(0), op, arg(1)); };
  auto call = [&](const char* f) { return fmt::format("{}({}, {})", f, arg(0), arg(1)); };
  switch (n.op) {
    case ExprOp::kConst:
      return fmt::format("{}", n.value);
    case ExprOp::kVar:
      return var_text(program, static_cast<int>(n.value));
    case ExprOp::kAdd:
      return infix("+");
    case ExprOp::kSub:
      return infix("-");
    case ExprOp::kMul:
      return infix("*");
    case ExprOp::kFloorDiv:
      return division_text(program, n, "quotient_of", "floor_div", "floor_div_any");
    case ExprOp::kMod:
      return division_text(program, n, "remainder_of", "floor_mod", "floor_mod_any");
    case ExprOp::kMin:
      return call("min");
    case ExprOp::kMax:
      return call("max");
    case ExprOp::kLt:
      return infix("<");
    case ExprOp::kLe:
      return infix("<=");
    case ExprOp::kEq:
      return infix("==");
    case ExprOp::kAnd:
      return infix("&&");
    case ExprOp::kOr:
      return infix("||");
    case ExprOp::kNot:
      return fmt::format("(!{})", arg(0));
    case ExprOp::kSelect:
      return fmt::format("({} ? {} : {})", arg(0), arg(1), arg(2));
    case ExprOp::kTable:
      return table_entry_text(program, n);
  }
  throw InternalError("unknown index operation");
}

std::int64_t known_factor(const Expr& expr, const Block& body) {
  const ExprNode& n = expr.node();
  auto factor = [&](std::size_t i) { return known_factor(n.args[i], body); };
  switch (n.op) {
    case ExprOp::kConst: {
      if (n.value == 0) return kMaxFactor;
      return std::min(kMaxFactor, n.value & -n.value);
    }
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMin:
    case ExprOp::kMax:
    case ExprOp::kMod:
      return std::min(factor(0), factor(1));
    case ExprOp::kMul:
      return std::min(kMaxFactor, factor(0) * factor(1));
    case ExprOp::kSelect:
      return std::min(factor(1), factor(2));
    case ExprOp::kVar: {  // a named intermediate, which copies of a loop may name once more
      std::int64_t least = 0;
      for_each_let(body, static_cast<int>(n.value), [&](const Expr& value) {
        std::int64_t f = known_factor(value, body);
        least = least == 0 ? f : std::min(least, f);
      });
      return std::max<std::int64_t>(least, 1);
    }
    default:
      return 1;
  }
}

bool never_negative(const Program& program, const Expr& expr,
                    const std::function<Expr(int)>& let_value) {
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return never_negative(program, n.args[i], let_value); };
  switch (n.op) {
    case ExprOp::kConst:
      return n.value >= 0;
    case ExprOp::kVar: {
      auto idx = static_cast<int>(n.value);
      VarKind kind = program.vars[static_cast<std::size_t>(idx)].kind;
      if (kind != VarKind::kLet && kind != VarKind::kLoop) return true;
      Expr value = let_value(idx);
      return value.has_value() && never_negative(program, value, let_value);
    }
    case ExprOp::kAdd:
    case ExprOp::kMul:
    case ExprOp::kMin:
      return arg(0) && arg(1);
    case ExprOp::kMax:
      return arg(0) || arg(1);
    case ExprOp::kFloorDiv:
      return arg(0) && divides_plainly(program, n.args[1]);
    case ExprOp::kMod:
      return divides_plainly(program, n.args[1]);
    case ExprOp::kSelect:
      return arg(1) && arg(2);
    case ExprOp::kSub: {  // what is rounded up: x + c - 1
      const ExprNode& sum = n.args[0].node();
      return n.args[1].is_const(1) && sum.op == ExprOp::kAdd && sum.args[1].is_const() &&
             sum.args[1].const_value() >= 1 && never_negative(program, sum.args[0], let_value);
    }
    case ExprOp::kTable:
      return false;
    default:
      return true;  // 0 or 1
  }
}

bool never_negative(const Program& program, const Expr& expr, const Block& body) {
  return never_negative(program, expr, [&](int var) { return value_in(body, var); });
}

}  // namespace stretto
