#include "stretto/executor/expr_code.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"

namespace stretto {

ExprCode::ExprCode(const Expr& expr, std::span<const Expr> known) {
  if (!expr.has_value()) return;
  Expr folded = substitute(expr, known);
  kind_ = Kind::kAffine;
  if (add_affine(folded, 1)) return;
  kind_ = Kind::kSteps;
  num_terms_ = 0;
  constant_ = 0;
  if (add_steps(folded) <= kMaxStack) return;
  kind_ = Kind::kTree;
  tree_ = folded;
}

bool ExprCode::add_affine(const Expr& expr, std::int64_t factor) {
  const ExprNode& n = expr.node();
  switch (n.op) {
    case ExprOp::kConst:
      constant_ += factor * n.value;
      return true;
    case ExprOp::kVar: {
      for (int i = 0; i < num_terms_; ++i) {
        if (terms_[i].var == n.value) {
          terms_[i].factor += factor;
          return true;
        }
      }
      if (num_terms_ == kMaxTerms) return false;
      terms_[num_terms_++] = {static_cast<int>(n.value), factor};
      return true;
    }
    case ExprOp::kAdd:
      return add_affine(n.args[0], factor) && add_affine(n.args[1], factor);
    case ExprOp::kSub:
      return add_affine(n.args[0], factor) && add_affine(n.args[1], -factor);
    case ExprOp::kMul:
      if (n.args[0].is_const()) return add_affine(n.args[1], factor * n.args[0].const_value());
      if (n.args[1].is_const()) return add_affine(n.args[0], factor * n.args[1].const_value());
      return false;
    default:
      return false;
  }
}

int ExprCode::add_steps(const Expr& expr) {
  const ExprNode& n = expr.node();
  auto here = [&] { return static_cast<std::int64_t>(steps_.size()); };
  switch (n.op) {
    case ExprOp::kConst:
      steps_.push_back({.kind = StepKind::kPush, .value = n.value});
      return 1;
    case ExprOp::kVar:
      steps_.push_back({.kind = StepKind::kVar, .value = n.value});
      return 1;
    case ExprOp::kNot: {
      int depth = add_steps(n.args[0]);
      steps_.push_back({.kind = StepKind::kNot});
      return depth;
    }
    case ExprOp::kSelect: {
      int depth = add_steps(n.args[0]);
      std::size_t to_else = steps_.size();
      steps_.push_back({.kind = StepKind::kJumpIfZero});
      depth = std::max(depth, add_steps(n.args[1]));
      std::size_t to_end = steps_.size();
      steps_.push_back({.kind = StepKind::kJump});
      steps_[to_else].value = here();
      depth = std::max(depth, add_steps(n.args[2]));
      steps_[to_end].value = here();
      return depth;
    }
    case ExprOp::kTable: {
      int depth = 1, held = 0;
      for (const Expr& arg : n.args) depth = std::max(depth, held++ + add_steps(arg));
      steps_.push_back({.kind = StepKind::kTable, .count = held, .value = n.value});
      return depth;
    }
    default: {
      int left = add_steps(n.args[0]);
      int right = add_steps(n.args[1]);
      steps_.push_back({.kind = StepKind::kBinary, .op = n.op});
      return std::max(left, right + 1);
    }
  }
}

std::int64_t ExprCode::eval_steps(const std::vector<std::int64_t>& vars,
                                  TableReader* tables) const {
  if (kind_ == Kind::kTree) return stretto::eval(tree_, vars, tables);
  STRETTO_CHECK(kind_ == Kind::kSteps, "an absent expression has no value");
  std::int64_t stack[kMaxStack];
  std::int64_t* top = stack;  // one past the last
  for (std::size_t pc = 0; pc < steps_.size(); ++pc) {
    const Step& step = steps_[pc];
    switch (step.kind) {
      case StepKind::kPush:
        *top++ = step.value;
        break;
      case StepKind::kVar:
        *top++ = vars[static_cast<std::size_t>(step.value)];
        break;
      case StepKind::kBinary:
        --top;
        top[-1] = apply(step.op, top[-1], top[0]);
        break;
      case StepKind::kNot:
        top[-1] = top[-1] == 0;
        break;
      case StepKind::kTable: {
        STRETTO_CHECK(tables != nullptr, "table read where no table is at hand");
        top -= step.count;
        auto count = static_cast<std::size_t>(step.count);
        *top = tables->read(static_cast<int>(step.value), {top, count});
        ++top;
        break;
      }
      case StepKind::kJump:
        pc = static_cast<std::size_t>(step.value) - 1;
        break;
      case StepKind::kJumpIfZero:
        if (*--top == 0) pc = static_cast<std::size_t>(step.value) - 1;
        break;
    }
  }
  return stack[0];
}

bool constant_step(const Expr& expr, int var_idx, std::int64_t* step) {
  *step = 0;
  if (!uses_var(expr, var_idx)) return true;
  const ExprNode& n = expr.node();
  std::int64_t a = 0, b = 0;
  switch (n.op) {
    case ExprOp::kVar:
      *step = 1;
      return true;
    case ExprOp::kAdd:
    case ExprOp::kSub:
      if (!constant_step(n.args[0], var_idx, &a) || !constant_step(n.args[1], var_idx, &b)) {
        return false;
      }
      *step = n.op == ExprOp::kAdd ? a + b : a - b;
      return true;
    case ExprOp::kMul: {
      bool left = n.args[0].is_const();
      if (!left && !n.args[1].is_const()) return false;
      if (!constant_step(n.args[left ? 1 : 0], var_idx, &a)) return false;
      *step = a * n.args[left ? 0 : 1].const_value();
      return true;
    }
    default:
      return false;
  }
}

}  // namespace stretto
