// Index expressions made cheap to evaluate. The translator compiles every expression of a role once
// per instance, with the rank folded in; a launch then evaluates thousands of them per millisecond.
// What they mean is ir/expr.h alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/ir/expr.h"

namespace stretto {

class ExprCode {
 public:
  ExprCode() = default;  // absent
  // `known[var_idx]`, where it has a value, replaces that variable (the rank).
  ExprCode(const Expr& expr, std::span<const Expr> known);

  bool present() const { return kind_ != Kind::kAbsent; }
  bool is_const() const { return kind_ == Kind::kAffine && num_terms_ == 0; }
  std::int64_t constant() const { return constant_; }

  // `vars` as in ir/expr.h. `tables` may be null where the expression reads none.
  std::int64_t eval(const std::vector<std::int64_t>& vars, TableReader* tables = nullptr) const {
    if (kind_ == Kind::kAffine) {
      std::int64_t sum = constant_;
      for (int i = 0; i < num_terms_; ++i)
        sum += terms_[i].factor * vars[static_cast<std::size_t>(terms_[i].var)];
      return sum;
    }
    return eval_steps(vars, tables);
  }

 private:
  enum class Kind : std::uint8_t { kAbsent, kAffine, kSteps, kTree };
  static constexpr int kMaxTerms = 3;
  static constexpr int kMaxStack = 48;
  struct Term {
    int var;
    std::int64_t factor;
  };
  // One step of a postfix evaluation on a stack. Jumps keep the branch of a `select` that is not
  // taken from being evaluated, so that a guarded division or table read stays guarded.
  enum class StepKind : std::uint8_t { kPush, kVar, kBinary, kNot, kTable, kJump, kJumpIfZero };
  struct Step {
    StepKind kind;
    ExprOp op = ExprOp::kConst;
    int count = 0;           // kTable: indices taken from the stack
    std::int64_t value = 0;  // constant, variable, tensor, or target
  };

  bool add_affine(const Expr& expr, std::int64_t factor);
  int add_steps(const Expr& expr);  // returns the stack depth it needs
  std::int64_t eval_steps(const std::vector<std::int64_t>& vars, TableReader* tables) const;

  Kind kind_ = Kind::kAbsent;
  int num_terms_ = 0;
  std::int64_t constant_ = 0;
  std::array<Term, kMaxTerms> terms_{};
  std::vector<Step> steps_;
  Expr tree_;  // where the steps would need more than kMaxStack
};

// How `expr` changes when `var_idx` grows by one, where that is the same constant everywhere; false
// where it is not.
bool constant_step(const Expr& expr, int var_idx, std::int64_t* step);

}  // namespace stretto
