#include "stretto/ir/quota.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/walk_budget.h"

namespace stretto {
namespace {

// Does anything in the block notify? Blocks without are skipped, so a long main loop costs nothing.
bool notifies(const Block& block) {
  for (const Op& op : block) {
    if (op.code == OpCode::kNotify) return true;
    for (const Block& body : op.bodies) {
      if (notifies(body)) return true;
    }
  }
  return false;
}

class Counter {
 public:
  Counter(const Program& program, Quotas& quotas)
      : program_(program), quotas_(quotas), known_(program.vars.size()) {}

  void start_rank(std::vector<std::int64_t> vars) {
    vars_ = std::move(vars);
    known_.assign(program_.vars.size(), true);
  }

  void count(const Role& role) {
    if (!notifies(role.agents)) return;
    std::int64_t num_tiles = eval(role.num_tiles, vars_);
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      budget_.step(role.loc);
      vars_[static_cast<std::size_t>(role.tile_var)] = t;
      for (const Agent& agent : role.agents) count(agent.body);
    }
  }

  void count(const Block& block) {
    for (const Op& op : block) count(op);
  }

 private:
  static bool notifies(const std::vector<Agent>& agents) {
    for (const Agent& agent : agents) {
      if (stretto::notifies(agent.body)) return true;
    }
    return false;
  }

  void count(const Op& op) {
    switch (op.code) {
      case OpCode::kLet: {
        bool known = is_known(op.exprs[0]);
        auto var = static_cast<std::size_t>(op.var);
        known_[var] = known;
        if (known) vars_[var] = eval(op.exprs[0], vars_);
        return;
      }
      case OpCode::kNotify:
        return add(op);
      case OpCode::kLoop: {
        if (!stretto::notifies(op.bodies[0])) return;
        std::int64_t lo = value(op, op.exprs[0]), hi = value(op, op.exprs[1]);
        for (std::int64_t i = lo; i < hi; ++i) {
          budget_.step(op.loc);
          vars_[static_cast<std::size_t>(op.var)] = i;
          count(op.bodies[0]);
        }
        return;
      }
      case OpCode::kWhen:
        if (!stretto::notifies(op.bodies[0]) && !stretto::notifies(op.bodies[1])) return;
        return count(op.bodies[value(op, op.exprs[0]) != 0 ? 0 : 1]);
      default:
        return;
    }
  }

  void add(const Op& op) {
    const Signal& signal = program_.signals[static_cast<std::size_t>(op.symbol)];
    std::int64_t channel = value(op, op.exprs[0]), rank = value(op, op.exprs[1]),
                 amount = value(op, op.exprs[2]);
    auto fail = [&](const std::string& what) {
      throw UserError(
          fmt::format("{}:{}: notify of '{}': {}", op.loc.file, op.loc.line, signal.name, what));
    };
    if (channel < 0 || channel >= signal.num_channels) {
      fail(fmt::format("channel {} of {} on rank {}", channel, signal.num_channels, vars_[0]));
    }
    if (rank < 0 || rank >= program_.world_size)
      fail(fmt::format("rank {} of {}", rank, program_.world_size));
    if (amount < 0) fail(fmt::format("amount {} is negative", amount));
    quotas_[static_cast<std::size_t>(op.symbol)][static_cast<std::size_t>(rank)]
           [static_cast<std::size_t>(channel)] += amount;
  }

  std::int64_t value(const Op& op, const Expr& expr) {
    if (!is_known(expr)) {
      throw UserError(
          fmt::format("{}:{}: a notify depends on a table, so its number per launch would vary",
                      op.loc.file, op.loc.line));
    }
    return eval(expr, vars_);
  }

  bool is_known(const Expr& expr) const {
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kTable) return false;
    if (n.op == ExprOp::kVar) return known_[static_cast<std::size_t>(n.value)];
    for (const Expr& arg : n.args) {
      if (!is_known(arg)) return false;
    }
    return true;
  }

  const Program& program_;
  Quotas& quotas_;
  std::vector<std::int64_t> vars_;
  std::vector<bool> known_;
  WalkBudget budget_;
};

}  // namespace

Quotas count_quotas(const Program& program, const std::vector<std::int64_t>& extents) {
  auto world = static_cast<std::size_t>(program.world_size);
  Quotas quotas;
  for (const Signal& signal : program.signals) {
    quotas.emplace_back(
        world, std::vector<std::int64_t>(static_cast<std::size_t>(signal.num_channels), 0));
  }
  Counter counter(program, quotas);
  for (int rank = 0; rank < program.world_size; ++rank) {
    counter.start_rank(initial_vars(program, rank, extents));
    counter.count(program.on_start.body);
    for (const Role& role : program.roles) counter.count(role);
    counter.count(program.on_end.body);
  }
  return quotas;
}

}  // namespace stretto
