#include "stretto/ir/expr.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"

namespace stretto {
namespace {

bool is_binary(ExprOp op) { return op >= ExprOp::kAdd && op <= ExprOp::kOr; }

// The operand that a binary operation reduces to, absent where no identity applies.
Expr simplify(ExprOp op, const Expr& a, const Expr& b) {
  switch (op) {
    case ExprOp::kAdd:
      if (a.is_const(0)) return b;
      if (b.is_const(0)) return a;
      break;
    case ExprOp::kSub:
      if (b.is_const(0)) return a;
      if (a.same(b)) return 0;
      break;
    case ExprOp::kMul:
      if (a.is_const(0) || b.is_const(0)) return 0;
      if (a.is_const(1)) return b;
      if (b.is_const(1)) return a;
      break;
    case ExprOp::kFloorDiv:
      if (b.is_const(1)) return a;
      if (a.is_const(0) && b.is_const()) return 0;
      break;
    case ExprOp::kMod:
      if (b.is_const(1)) return 0;
      break;
    case ExprOp::kMin:
    case ExprOp::kMax:
      if (a.same(b)) return a;
      break;
    default:
      break;
  }
  return {};
}

}  // namespace

Expr::Expr(std::int64_t value)
    : node_(std::make_shared<ExprNode>(ExprNode{ExprOp::kConst, value, {}})) {}

Expr Expr::var(int var_idx) {
  return Expr(std::make_shared<ExprNode>(ExprNode{ExprOp::kVar, var_idx, {}}));
}

Expr Expr::table(int tensor_idx, std::vector<Expr> index) {
  return Expr(std::make_shared<ExprNode>(ExprNode{ExprOp::kTable, tensor_idx, std::move(index)}));
}

Expr Expr::make(ExprOp op, std::vector<Expr> args) {
  if (is_binary(op)) {
    STRETTO_CHECK(args.size() == 2, "binary expression needs two arguments");
    bool divides_by_zero = (op == ExprOp::kFloorDiv || op == ExprOp::kMod) && args[1].is_const(0);
    if (args[0].is_const() && args[1].is_const() && !divides_by_zero) {
      return apply(op, args[0].const_value(), args[1].const_value());
    }
    if (Expr simple = simplify(op, args[0], args[1]); simple.has_value()) return simple;
  } else if (op == ExprOp::kNot) {
    STRETTO_CHECK(args.size() == 1, "`not` needs one argument");
    if (args[0].is_const()) return args[0].const_value() == 0 ? 1 : 0;
  } else if (op == ExprOp::kSelect) {
    STRETTO_CHECK(args.size() == 3, "`select` needs three arguments");
    if (args[0].is_const()) return args[0].const_value() != 0 ? args[1] : args[2];
  } else {
    throw InternalError("expr: make() takes operations only");
  }
  return Expr(std::make_shared<ExprNode>(ExprNode{op, 0, std::move(args)}));
}

bool Expr::is_const() const { return node_ && node_->op == ExprOp::kConst; }
bool Expr::is_const(std::int64_t value) const { return is_const() && node_->value == value; }
std::int64_t Expr::const_value() const {
  STRETTO_CHECK(is_const(), "expression is not a constant");
  return node_->value;
}

bool Expr::same(const Expr& other) const {
  if (node_ == other.node_) return true;
  if (!node_ || !other.node_) return false;
  if (node_->op != other.node_->op || node_->value != other.node_->value) return false;
  return std::equal(node_->args.begin(), node_->args.end(), other.node_->args.begin(),
                    other.node_->args.end(),
                    [](const Expr& x, const Expr& y) { return x.same(y); });
}

Expr operator+(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kAdd, {a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kSub, {a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kMul, {a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kFloorDiv, {a, b}); }
Expr operator%(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kMod, {a, b}); }
Expr operator<(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kLt, {a, b}); }
Expr operator<=(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kLe, {a, b}); }
Expr operator==(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kEq, {a, b}); }
Expr operator!=(const Expr& a, const Expr& b) { return !(a == b); }
Expr operator&&(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kAnd, {a, b}); }
Expr operator||(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kOr, {a, b}); }
Expr operator!(const Expr& a) { return Expr::make(ExprOp::kNot, {a}); }
Expr min(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kMin, {a, b}); }
Expr max(const Expr& a, const Expr& b) { return Expr::make(ExprOp::kMax, {a, b}); }
Expr select(const Expr& condition, const Expr& then, const Expr& otherwise) {
  return Expr::make(ExprOp::kSelect, {condition, then, otherwise});
}
Expr ceil_div(const Expr& a, const Expr& b) { return (a + b - 1) / b; }

std::int64_t eval(const Expr& expr, std::span<const std::int64_t> vars, TableReader* tables) {
  const ExprNode& n = expr.node();
  switch (n.op) {
    case ExprOp::kConst:
      return n.value;
    case ExprOp::kVar:
      return vars[static_cast<std::size_t>(n.value)];
    case ExprOp::kNot:
      return eval(n.args[0], vars, tables) == 0;
    case ExprOp::kSelect:
      return eval(n.args[0], vars, tables) != 0 ? eval(n.args[1], vars, tables)
                                                : eval(n.args[2], vars, tables);
    case ExprOp::kTable: {
      STRETTO_CHECK(tables != nullptr, "table read where no table is at hand");
      std::vector<std::int64_t> index;
      index.reserve(n.args.size());
      for (const Expr& arg : n.args) index.push_back(eval(arg, vars, tables));
      return tables->read(static_cast<int>(n.value), index);
    }
    default:
      return apply(n.op, eval(n.args[0], vars, tables), eval(n.args[1], vars, tables));
  }
}

bool uses_var(const Expr& expr, int var_idx) {
  if (!expr.has_value()) return false;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) return n.value == var_idx;
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& a) { return uses_var(a, var_idx); });
}

bool uses_table(const Expr& expr) {
  if (!expr.has_value()) return false;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) return true;
  return std::any_of(n.args.begin(), n.args.end(), [](const Expr& a) { return uses_table(a); });
}

Expr substitute(const Expr& expr, std::span<const Expr> replacement) {
  if (!expr.has_value()) return expr;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kConst) return expr;
  if (n.op == ExprOp::kVar) {
    auto idx = static_cast<std::size_t>(n.value);
    return idx < replacement.size() && replacement[idx].has_value() ? replacement[idx] : expr;
  }
  std::vector<Expr> args;
  args.reserve(n.args.size());
  for (const Expr& arg : n.args) args.push_back(substitute(arg, replacement));
  if (n.op == ExprOp::kTable) return Expr::table(static_cast<int>(n.value), std::move(args));
  return Expr::make(n.op, std::move(args));
}

}  // namespace stretto
