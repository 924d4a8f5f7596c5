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
    if (v.is_float) return fmt::format("'{}' is a float, which a splat alone reads", v.name);
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
    visible.push_back(!v.is_float && std::find(kinds.begin(), kinds.end(), v.kind) != kinds.end());
  }
  return visible;
}

std::optional<std::int64_t> value_at_bounds(const Program& program, const Expr& expr) {
  std::vector<std::int64_t> vars;
  for (const Var& v : program.vars) vars.push_back(v.bound);
  try {
    return eval(expr, vars);
  } catch (const NoValue&) {
    return std::nullopt;
  }
}

std::string describe(const ValueType& type) {
  return fmt::format("{}[{}, {}]", short_name(type.dtype), type.rows, type.cols);
}

}  // namespace stretto
