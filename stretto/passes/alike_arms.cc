#include "stretto/passes/alike_arms.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <utility>

#include "stretto/ir/block_ops.h"
#include "stretto/passes/prune.h"

namespace stretto {
namespace {

using Mentions = std::map<int, std::int64_t>;  // by register

Mentions mentions_of(const Block& block) {
  Mentions out;
  for_each_op(block, [&](const Op& op) {
    if (op.result >= 0) ++out[op.result];
    for (int reg : op.operands) ++out[reg];
  });
  return out;
}

// Names of one text and those that stand in their places in another.
class Renaming {
 public:
  // False where either stands for a third.
  bool pair(int a, int b) {
    return there_.try_emplace(a, b).first->second == b &&
           back_.try_emplace(b, a).first->second == a;
  }
  const std::map<int, int>& pairs() const { return there_; }

 private:
  std::map<int, int> there_, back_;
};

template <typename T, typename Same>
bool all_same(const std::vector<T>& a, const std::vector<T>& b, const Same& same) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

// Compares two blocks, operation by operation.
class Comparison {
 public:
  bool same(const Block& a, const Block& b) {
    return all_same(a, b, [&](const Op& x, const Op& y) { return same(x, y); });
  }
  const std::map<int, int>& registers() const { return registers_.pairs(); }

 private:
  bool same(const Op& a, const Op& b) {
    auto registers_alike = [&](int x, int y) { return registers_.pair(x, y); };
    return a.code == b.code && same_attributes(a, b) &&
           all_same(a.operands, b.operands, registers_alike) &&
           registers_.pair(a.result, b.result) && same_exprs(a.exprs, b.exprs) &&
           same(a.region, b.region) && same(a.region2, b.region2) &&
           variables_.pair(a.var, b.var) &&
           all_same(a.bodies, b.bodies, [&](const Block& x, const Block& y) { return same(x, y); });
  }

  static bool same_attributes(const Op& a, const Op& b) {
    auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
    return a.symbol == b.symbol && a.symbol2 == b.symbol2 && bits(a.value) == bits(b.value) &&
           a.axis == b.axis && a.mode == b.mode && a.unary == b.unary && a.binary == b.binary &&
           a.reduce == b.reduce && a.stage == b.stage && a.multicast == b.multicast;
  }

  bool same_exprs(const std::vector<Expr>& a, const std::vector<Expr>& b) const {
    return all_same(a, b, [&](const Expr& x, const Expr& y) { return same(x, y); });
  }

  bool same(const Expr& a, const Expr& b) const {
    if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
    const ExprNode &x = a.node(), &y = b.node();
    if (x.op != y.op || !same_exprs(x.args, y.args)) return false;
    if (x.op != ExprOp::kVar) return x.value == y.value;
    auto defined = variables_.pairs().find(static_cast<int>(x.value));
    return defined == variables_.pairs().end() ? x.value == y.value : defined->second == y.value;
  }

  bool same(const std::optional<Region>& a, const std::optional<Region>& b) const {
    if (!a || !b) return a.has_value() == b.has_value();
    return a->tensor == b->tensor && a->row_dim == b->row_dim && a->col_dim == b->col_dim &&
           a->rows == b->rows && a->cols == b->cols && same(a->rank, b->rank) &&
           same_exprs(a->origin, b->origin) && same(a->row_end, b->row_end) &&
           same(a->col_end, b->col_end);
  }

  Renaming registers_;  // -1, which is none, stands for itself
  Renaming variables_;  // that are defined within
};

class ArmMerger {
 public:
  explicit ArmMerger(Agent& agent)
      : values_(agent.values), body_(agent.body), mentions_(mentions_of(agent.body)) {}

  bool run() { return merge(body_); }

 private:
  // Whether anything was merged. The innermost first: what is around them may be alike then.
  bool merge(Block& block) {
    bool merged = false;
    Block out;
    for (Op& op : block) {
      for (Block& body : op.bodies) merged |= merge(body);
      if (op.code == OpCode::kWhen && alike(op.bodies[0], op.bodies[1])) {
        for (auto [reg, count] : mentions_of(op.bodies[1])) mentions_[reg] -= count;
        std::move(op.bodies[0].begin(), op.bodies[0].end(), std::back_inserter(out));
        merged = true;
      } else {
        out.push_back(std::move(op));
      }
    }
    block = std::move(out);
    return merged;
  }

  bool alike(const Block& a, const Block& b) const {
    Comparison comparison;
    if (!comparison.same(a, b)) return false;
    const Mentions in_a = mentions_of(a), in_b = mentions_of(b);
    return std::all_of(
        comparison.registers().begin(), comparison.registers().end(), [&](const auto& pair) {
          auto [x, y] = pair;
          return x == y || (type(x) == type(y) && is_own(x, in_a) && is_own(y, in_b));
        });
  }

  // Nothing but the arm names the register.
  bool is_own(int reg, const Mentions& in_arm) const { return in_arm.at(reg) == mentions_.at(reg); }
  const ValueType& type(int reg) const { return values_[static_cast<std::size_t>(reg)]; }

  const std::vector<ValueType>& values_;
  Block& body_;
  Mentions mentions_;  // in all of the agent
};

template <typename Change>
void change_ops(Block& block, const Change& change) {
  for (Op& op : block) {
    change(op);
    for (Block& body : op.bodies) change_ops(body, change);
  }
}

// Leaves the agent no register that nobody names.
void drop_unnamed_values(Agent& agent) {
  std::vector<int> place(agent.values.size(), -1);
  std::vector<ValueType> kept;
  for (auto [reg, count] : mentions_of(agent.body)) {
    place[static_cast<std::size_t>(reg)] = static_cast<int>(kept.size());
    kept.push_back(agent.values[static_cast<std::size_t>(reg)]);
  }
  auto rename = [&](int& reg) { reg = reg < 0 ? reg : place[static_cast<std::size_t>(reg)]; };
  change_ops(agent.body, [&](Op& op) {
    rename(op.result);
    for (int& reg : op.operands) rename(reg);
  });
  agent.values = std::move(kept);
}

}  // namespace

Program merge_alike_arms(Program program) {
  auto merge = [&](Agent& agent) {
    if (!ArmMerger(agent).run()) return;
    prune(program, agent.body);
    drop_unnamed_values(agent);
  };
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) merge(agent);
  }
  merge(program.on_start);
  merge(program.on_end);
  return program;
}

}  // namespace stretto
