#include "stretto/ir/quota.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/ir/known_vars.h"
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
  Counter(const Program& program, Quotas& quotas) : program_(program), quotas_(quotas) {}

  void start_rank(int rank, std::vector<std::int64_t> vars) {
    rank_ = rank;
    vars_ = KnownVars(std::move(vars));
  }

  void count(const Role& role) {
    if (!notifies(role.agents)) return;
    std::int64_t num_tiles = vars_(role.num_tiles);
    for (std::int64_t t = 0; t < num_tiles; ++t) {
      budget_.step(role.loc);
      vars_.set(role.tile_var, t);
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
      case OpCode::kLet:
        return vars_.set(op.var, op.exprs[0]);
      case OpCode::kNotify:
        return add(op);
      case OpCode::kLoop: {
        if (!stretto::notifies(op.bodies[0])) return;
        std::int64_t lo = value(op, op.exprs[0]), hi = value(op, op.exprs[1]);
        for (std::int64_t i = lo; i < hi; ++i) {
          budget_.step(op.loc);
          vars_.set(op.var, i);
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
      fail(fmt::format("channel {} of {} on rank {}", channel, signal.num_channels, rank_));
    }
    if (rank < 0 || rank >= program_.world_size)
      fail(fmt::format("rank {} of {}", rank, program_.world_size));
    if (amount < 0) fail(fmt::format("amount {} is negative", amount));
    quotas_[static_cast<std::size_t>(op.symbol)][static_cast<std::size_t>(rank)]
           [static_cast<std::size_t>(channel)] += amount;
  }

  std::int64_t value(const Op& op, const Expr& expr) {
    if (!vars_.knows(expr)) {
      throw UserError(
          fmt::format("{}:{}: a notify depends on a table, so its number per launch would vary",
                      op.loc.file, op.loc.line));
    }
    return vars_(expr);
  }

  const Program& program_;
  Quotas& quotas_;
  KnownVars vars_;
  int rank_ = 0;
  WalkBudget budget_;
};

// Adds what the notifies of these ranks, `first` to `end`, do.
Quotas count(const Program& program, const std::vector<std::int64_t>& extents, int first, int end) {
  auto world = static_cast<std::size_t>(program.world_size);
  Quotas quotas;
  for (const Signal& signal : program.signals) {
    quotas.emplace_back(
        world, std::vector<std::int64_t>(static_cast<std::size_t>(signal.num_channels), 0));
  }
  Counter counter(program, quotas);
  for (int rank = first; rank < end; ++rank) {
    counter.start_rank(rank, initial_vars(program, rank, extents));
    counter.count(program.on_start.body);
    for (const Role& role : program.roles) counter.count(role);
    counter.count(program.on_end.body);
  }
  return quotas;
}

}  // namespace

Quotas count_quotas(const Program& program, const std::vector<std::int64_t>& extents) {
  return count(program, extents, 0, program.world_size);
}

int only_notifier(const Program& program, int rank, int signal, std::int64_t channel) {
  std::vector<std::int64_t> extents = extent_bounds(program);
  int found = -1;
  for (int source = 0; source < program.world_size; ++source) {
    Quotas of_source = count(program, extents, source, source + 1);
    std::int64_t notified =
        of_source[static_cast<std::size_t>(signal)][static_cast<std::size_t>(rank)]
                 [static_cast<std::size_t>(channel)];
    if (notified == 0) continue;
    if (found >= 0) return -1;
    found = source;
  }
  return found;
}

}  // namespace stretto
