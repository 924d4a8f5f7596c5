// Behind verifier.h: verifier.cc checks declarations and roles, verify_expr.cc expressions,
// verify_body.cc operations in their order (BodyChecker), verify_types.cc an operation's types
// (TypeChecker).
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/ir/op_info.h"
#include "stretto/ir/program.h"

namespace stretto {

// Throws UserError "file:line: message".
[[noreturn]] void fail_at(const Program& program, const SourceLoc& loc, const std::string& message);

template <typename T>
bool is_index(int idx, const std::vector<T>& items) {
  return idx >= 0 && static_cast<std::size_t>(idx) < items.size();
}

// Empty when the expression is sound, else the reason. `visible[var]`: it has a value here.
struct ExprRules {
  const std::vector<bool>& visible;
  bool tables = false;
};
std::string expr_problem(const Program& program, const Expr& expr, const ExprRules& rules);

// Variables with a value everywhere: the kinds asked for.
std::vector<bool> visible_vars(const Program& program, std::initializer_list<VarKind> kinds);

// The value with every extent and scalar at its bound on rank 0; nullopt when it leaves 64 bits or
// divides by zero. The expression must be sound and read no table.
std::optional<std::int64_t> value_at_bounds(const Program& program, const Expr& expr);

std::string describe(const ValueType& type);  // "bf16[128, 64]"

// Where a body stands. `role` is nullptr for on_start and on_end. All of it must outlive a checker.
struct BodyPlace {
  const Program& program;
  const Role* role;
  int agent_idx;
  const Agent& agent;
};

// UserError that names the operation and where it stands.
[[noreturn]] void fail_at_op(const BodyPlace& place, const Op& op, const std::string& reason);

// The typing rules of one operation, whose registers, pipes and tensors exist.
class TypeChecker {
 public:
  TypeChecker(const BodyPlace& place, const Op& op) : place_(place), op_(op) {}

  void check();

 private:
  void dot();
  void fill();
  void columns();
  void unary();
  void binary();
  void where();
  void reduce();
  void row_access();
  void store();
  void copy();
  void need_result(const ValueType& expected);
  ValueType broadcast_type(DType dtype, std::size_t first, std::size_t last);
  ValueType region_type(const Region& r) const;
  const ValueType& operand(std::size_t i) const;
  const ValueType& result() const;
  const Pipe& pipe() const;
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
    if (!holds) fail_at_op(place_, op_, fmt::format(format, std::forward<Args>(args)...));
  }

  const BodyPlace& place_;
  const Op& op_;
};

// One agent's body.
class BodyChecker {
 public:
  explicit BodyChecker(const BodyPlace& place);

  void check();

 private:
  struct Access {
    bool writes;
    bool packet;
  };

  void block(const Block& block, int depth);
  void op(const Op& op, int depth);
  void counts(const OpInfo& info);
  void level(const OpInfo& info);
  void registers();
  void exprs();
  void regions();
  void region(const Region& r, const Access& access);
  void region_shape(const Region& r, const Tensor& tensor);
  void symbols();
  void signal_args();
  void map_channels();
  void pipe_end();
  void control(int depth);
  void loop(int depth);
  void scalar_influence();
  void attributes();

  const Tensor& tensor(const Region& r) const {
    return place_.program.tensors[static_cast<std::size_t>(r.tensor)];
  }
  void require_expr(const Expr& e, std::string_view what, bool tables = false);
  bool depends_on_scalar(const Expr& e) const;
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
    if (!holds) fail_at_op(place_, *op_, fmt::format(format, std::forward<Args>(args)...));
  }

  BodyPlace place_;
  const Op* op_ = nullptr;      // the operation under check
  std::vector<bool> visible_;   // variables
  std::vector<bool> defined_;   // registers
  std::vector<bool> assigned_;  // loop variables that have had their loop, lets theirs
  std::vector<bool> scalar_;    // `let` and loop variables that follow from a scalar
  int num_loops_ = 0;           // around the current operation
  bool under_scalar_ = false;   // a loop or when around it follows from a scalar
};

}  // namespace stretto
