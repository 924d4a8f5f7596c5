// The variables of a walk through a program without its tables: what a table decides is not known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

class KnownVars {
 public:
  KnownVars() = default;
  explicit KnownVars(std::vector<std::int64_t> vars)
      : vars_(std::move(vars)), known_(vars_.size(), true) {}

  void set(int var, std::int64_t value) {
    vars_[static_cast<std::size_t>(var)] = value;
    known_[static_cast<std::size_t>(var)] = true;
  }
  void forget(int var) { known_[static_cast<std::size_t>(var)] = false; }
  void set(int var, const Expr& value) {
    knows(value) ? set(var, eval(value, vars_)) : forget(var);
  }

  bool knows(const Expr& expr) const {
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kTable) return false;
    if (n.op == ExprOp::kVar) return known_[static_cast<std::size_t>(n.value)];
    return std::all_of(n.args.begin(), n.args.end(), [&](const Expr& e) { return knows(e); });
  }
  // Of what it knows.
  std::int64_t operator()(const Expr& expr) const { return eval(expr, vars_); }

 private:
  std::vector<std::int64_t> vars_;
  std::vector<bool> known_;
};

}  // namespace stretto
