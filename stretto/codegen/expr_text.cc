#include "stretto/codegen/expr_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "stretto/base/errors.h"
#include "stretto/codegen/table_text.h"

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
  }
  throw InternalError("unknown dtype");
}

void refuse_doubles(const Program& program) {
  constexpr const char* kWhere = "which CPU ranks compute with and GPUs do not";
  for (const Tensor& t : program.tensors) {
    if (t.dtype != DType::kF64) continue;
    throw UserError(fmt::format("{}: tensor '{}' is float64, {}", program.name, t.name, kWhere));
  }
  auto check = [&](const Agent& agent) {
    for (const ValueType& v : agent.values) {
      if (v.dtype != DType::kF64) continue;
      throw UserError(
          fmt::format("{}: '{}' has values of float64, {}", program.name, agent.name, kWhere));
    }
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
      return call(never_negative(program, n.args[0]) ? "quotient_of" : "floor_div");
    case ExprOp::kMod:
      return call(never_negative(program, n.args[0]) ? "remainder_of" : "floor_mod");
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
      return arg(0);  // divisors are positive
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
      return true;  // a remainder, or 0 or 1
  }
}

bool never_negative(const Program& program, const Expr& expr, const Block& body) {
  std::function<Expr(const Block&, int)> find = [&](const Block& block, int var) -> Expr {
    for (const Op& op : block) {
      if (op.var == var && (op.code == OpCode::kLet || op.code == OpCode::kLoop)) {
        return op.exprs[0];
      }
      for (const Block& inner : op.bodies) {
        if (Expr found = find(inner, var); found.has_value()) return found;
      }
    }
    return {};
  };
  return never_negative(program, expr, [&](int var) { return find(body, var); });
}

}  // namespace stretto
