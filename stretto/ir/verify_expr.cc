#include <algorithm>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/verifier_impl.h"

namespace stretto {
namespace {

class ExprChecker {
 public:
  ExprChecker(const Program& program, const ExprRules& rules) : program_(program), rules_(rules) {}

  std::string problem(const Expr& expr, int depth) {
    if (!expr.has_value()) return "an expression is missing";
    if (depth > kMaxExprDepth) {
      return fmt::format("an expression is more than {} deep; name parts of it with a let",
                         kMaxExprDepth);
    }
    if (++num_nodes_ > kMaxExprNodes) {
      return fmt::format("an expression has more than {} parts; name some with a let",
                         kMaxExprNodes);
    }
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kVar) return var_problem(n.value);
    if (n.op == ExprOp::kTable) {
      if (std::string bad = table_problem(n); !bad.empty()) return bad;
    }
    if ((n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) && n.args[1].is_const(0)) {
      return "division by zero";
    }
    for (const Expr& arg : n.args) {
      if (std::string bad = problem(arg, depth + 1); !bad.empty()) return bad;
    }
    return {};
  }

 private:
  std::string var_problem(std::int64_t idx) const {
    if (idx < 0 || static_cast<std::size_t>(idx) >= program_.vars.size()) {
      return fmt::format("variable {} does not exist", idx);
    }
    if (rules_.visible[static_cast<std::size_t>(idx)]) return {};
    const Var& v = program_.vars[static_cast<std::size_t>(idx)];
    return fmt::format("variable '{}' has no value here", v.name);
  }

  std::string table_problem(const ExprNode& n) const {
    if (n.value < 0 || static_cast<std::size_t>(n.value) >= program_.tensors.size()) {
      return fmt::format("table {} does not exist", n.value);
    }
    const Tensor& t = program_.tensors[static_cast<std::size_t>(n.value)];
    if (!rules_.tables) return fmt::format("table '{}' may be read in a let only", t.name);
    if (t.dtype != DType::kI32 && t.dtype != DType::kI64) {
      return fmt::format("table '{}' holds {}, need integers", t.name, short_name(t.dtype));
    }
    if (t.contract.kind == ContractKind::kNone) {
      return fmt::format("table '{}' has no contract on its values", t.name);
    }
    if (n.args.size() != t.shape.size()) {
      return fmt::format("table '{}' has {} dimensions, read with {} indices", t.name,
                         t.shape.size(), n.args.size());
    }
    return {};
  }

  const Program& program_;
  const ExprRules& rules_;
  int num_nodes_ = 0;
};

using Value = std::optional<std::int64_t>;

Value divide(ExprOp op, std::int64_t a, std::int64_t b) {
  if (b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1)) return std::nullopt;
  std::int64_t remainder = a % b;
  bool round_down = remainder != 0 && ((remainder < 0) != (b < 0));
  if (op == ExprOp::kMod) return round_down ? remainder + b : remainder;
  return round_down ? a / b - 1 : a / b;
}

Value checked_apply(ExprOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case ExprOp::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Value() : result;
    case ExprOp::kSub:
      return __builtin_sub_overflow(a, b, &result) ? Value() : result;
    case ExprOp::kMul:
      return __builtin_mul_overflow(a, b, &result) ? Value() : result;
    case ExprOp::kFloorDiv:
    case ExprOp::kMod:
      return divide(op, a, b);
    case ExprOp::kMin:
      return std::min(a, b);
    case ExprOp::kMax:
      return std::max(a, b);
    case ExprOp::kLt:
      return a < b;
    case ExprOp::kLe:
      return a <= b;
    case ExprOp::kEq:
      return a == b;
    case ExprOp::kAnd:
      return a != 0 && b != 0;
    case ExprOp::kOr:
      return a != 0 || b != 0;
    default:
      throw InternalError("not a binary operation");
  }
}

Value checked_eval(const Program& program, const Expr& expr) {
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return checked_eval(program, n.args[i]); };
  if (n.op == ExprOp::kConst) return n.value;
  if (n.op == ExprOp::kVar) return program.vars[static_cast<std::size_t>(n.value)].bound;
  Value a = arg(0);
  if (!a) return std::nullopt;
  if (n.op == ExprOp::kNot) return *a == 0;
  if (n.op == ExprOp::kSelect) return arg(*a != 0 ? 1 : 2);
  Value b = arg(1);
  if (!b) return std::nullopt;
  return checked_apply(n.op, *a, *b);
}

}  // namespace

void fail_at(const Program& program, const SourceLoc& loc, const std::string& message) {
  if (!loc.file.empty()) throw UserError(fmt::format("{}:{}: {}", loc.file, loc.line, message));
  throw UserError(fmt::format("program '{}': {}", program.name, message));
}

std::string expr_problem(const Program& program, const Expr& expr, const ExprRules& rules) {
  return ExprChecker(program, rules).problem(expr, 1);
}

std::vector<bool> visible_vars(const Program& program, std::initializer_list<VarKind> kinds) {
  std::vector<bool> visible;
  for (const Var& v : program.vars) {
    visible.push_back(std::find(kinds.begin(), kinds.end(), v.kind) != kinds.end());
  }
  return visible;
}

std::optional<std::int64_t> value_at_bounds(const Program& program, const Expr& expr) {
  return checked_eval(program, expr);
}

std::string describe(const ValueType& type) {
  return fmt::format("{}[{}, {}]", short_name(type.dtype), type.rows, type.cols);
}

}  // namespace stretto
