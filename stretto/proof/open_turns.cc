// Loops in which tiles take turns, as where a sequence has more rows than its tiles: iteration i
// has rows, or not, as a table says. Its body passes the same slots whenever it has, reads a rank's
// own inputs, stores, and has loops over slots that tables end within (open_loops.h).
//
// The graph has a meeting of the agents in place of the loop. What it stores is written down
// iteration by iteration, by who asks. That the agents come through is shown by itself, for every
// number of iterations that have rows, with a meeting in place of each loop within.
#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/open_loops.h"

namespace stretto {
namespace {

// Of terms: which of a loop's iterations it is.
constexpr std::int64_t kIteration = -3;

[[noreturn]] void refuse_turns() { throw DependsOnTable{"how often a loop over slots runs"}; }

// The only condition around slots, and what else there is beside it.
const Op* only_condition(const Block& body) {
  const Op* found = nullptr;
  for (const Op& op : body) {
    if (op.code == OpCode::kLet) continue;
    if (op.code != OpCode::kWhen || found != nullptr || !op.bodies[1].empty()) return nullptr;
    found = &op;
  }
  return found;
}

}  // namespace

bool OpenLoops::fit_turns(const Block& block, TurnsShape& shape) {
  return std::all_of(block.begin(), block.end(), [&](const Op& op) {
    shape.used.insert(op.operands.begin(), op.operands.end());
    switch (op.code) {
      case OpCode::kLet:
        return true;
      case OpCode::kPipePut:
        shape.pipes.insert(op.symbol);
        return op.operands.empty() && reads_own_inputs({op}, state_.program);
      case OpCode::kPipeGet:
        shape.got.insert(op.result);
        shape.pipes.insert(op.symbol);
        return true;
      case OpCode::kPipeRelease:
        shape.pipes.insert(op.symbol);
        return true;
      case OpCode::kLoad:
        return reads_own_inputs({op}, state_.program);
      case OpCode::kStore:
        return true;
      case OpCode::kAwait:
        return op.exprs[0].is_const();
      case OpCode::kLoop:
      case OpCode::kWhen: {
        if (is_register_choice(op)) {
          for (const Block& body : op.bodies) {
            for (const Op& inner : body) {
              shape.used.insert(inner.operands.begin(), inner.operands.end());
            }
          }
          return true;
        }
        const Shape& inner = shape_of(op);
        shape.used.insert(inner.used.begin(), inner.used.end());
        shape.got.insert(inner.got.begin(), inner.got.end());
        return inner.fits;
      }
      default:
        return op.bodies.empty() && !op.region && !op_info(op.code).synchronises &&
               op_info(op.code).schedule_level;
    }
  });
}

const OpenLoops::TurnsShape& OpenLoops::turns_of(const Op& loop) {
  auto [it, is_new] = turns_shapes_.try_emplace(&loop);
  if (!is_new) return it->second;
  TurnsShape& shape = it->second;
  const Op* condition = only_condition(loop.bodies[0]);
  bool around =
      condition != nullptr && !is_register_choice(*condition) && !shape_of(*condition).fits;
  shape.body = around ? &condition->bodies[0] : &loop.bodies[0];
  shape.fits = turns_ && !shape_of(loop).fits && goes_by_sizes(loop.exprs[1]) &&
               loop.exprs[0].node().op == ExprOp::kConst && fit_turns(*shape.body, shape) &&
               !shape.pipes.empty();
  return shape;
}

bool OpenLoops::may_take_turns(const Op& loop) {
  return turns_ && loop.code == OpCode::kLoop && turns_of(loop).fits;
}

void OpenLoops::begin_turns(const Op& loop) {
  std::optional<int> end = term_of(loop.exprs[1]);
  if (!may_ || !end || state_.untold_depth > 0) refuse_turns();
  const TurnsShape& shape = turns_of(loop);
  for (int reg : shape.used) {
    if (shape.got.count(syncs_.viewed(reg)) == 0) syncs_.read_register(loop, reg);
  }
  Bounds bounds{.begin = term({ExprOp::kConst, loop.exprs[0].const_value(), {}}), .end = *end};
  visits_[at(agent_)].push_back({.op = &loop,
                                 .bounds = bounds,
                                 .counts = {},
                                 .there = {},
                                 .choice = state_.choice(),
                                 .tile = state_.tile,
                                 .pos = 0,
                                 .reads = {},
                                 .turns = true,
                                 .inner = {}});
  let_[loop.var] = term({ExprOp::kVar, kIteration, {}});
}

void OpenLoops::turns_if(const Expr& condition) {
  std::optional<int> when = term_of(condition);
  if (!when) refuse_turns();
  visits_[at(agent_)].back().condition = *when;
}

void OpenLoops::take_in_turn(const Op& op) {
  const Shape& shape = shape_of(op);
  std::optional<Bounds> bounds = bounds_of(op, shape);
  if (!bounds) refuse_turns();
  auto counts = this->counts(op, shape, *bounds);
  if (!counts || shape.pipes.empty()) refuse_turns();
  visits_[at(agent_)].back().inner.push_back({&op, *bounds, *counts});
}

void OpenLoops::end_turns(const Op& loop) {
  auto& visits = visits_[at(agent_)];
  syncs_.meet(loop, static_cast<std::int64_t>(parties_.size() * visits.size()));
  syncs_.forget(turns_of(loop).got);
  let_.erase(loop.var);
}

// All agents take the same turns, with the same loops within.
void OpenLoops::finish_turns(std::size_t k) {
  const Visit& first = visits_[at(*parties_.begin())][k];
  std::vector<std::pair<int, const Op*>> bodies;
  for (int a : parties_) {
    if (visits_[at(a)].size() <= k) refuse_turns();
    const Visit& visit = visits_[at(a)][k];
    bool alike = visit.turns && visit.tile == first.tile && visit.bounds == first.bounds &&
                 visit.choice == first.choice && visit.condition == first.condition &&
                 visit.inner.size() == first.inner.size();
    if (!alike) refuse_turns();
    for (int pipe : turns_of(*visit.op).pipes) {
      const Pipe& p = role_->pipes[at(pipe)];
      bool known = parties_.count(p.producer) != 0 && parties_.count(p.consumer) != 0;
      if (syncs_.moved(pipe) || !known || p.producer == p.consumer) refuse_turns();
    }
    bodies.emplace_back(a, visit.op);
  }
  for (std::size_t i = 0; i < first.inner.size(); ++i) {
    std::vector<Part> parts;
    for (int a : parties_) {
      const Inner& inner = visits_[at(a)][k].inner[i];
      if (inner.bounds != first.inner[i].bounds) refuse_turns();
      parts.push_back({a, inner.op, inner.counts, inner.bounds.begin >= 0});
      for (int pipe : shapes_[inner.op].pipes) {
        bool outside = std::ranges::any_of(
            bodies, [&](const auto& b) { return turns_of(*b.second).pipes.count(pipe) != 0; });
        if (syncs_.moved(pipe) || outside) refuse_turns();
      }
    }
    check(parts);
  }
  check_turns(bodies);
}

// One number of iterations more is one body more, so what any number does shows in a few: see
// docs/decisions/0033-loops-that-sizes-end.md, with a period of 1 and no constants.
void OpenLoops::check_turns(const std::vector<std::pair<int, const Op*>>& parts) {
  if (!checked_turns_.insert(parts).second) return;
  std::int64_t slots = 1, passes = 0;
  for (auto [agent, loop] : parts) {
    for (const Op& op : *turns_of(*loop).body) {
      bool meets = (op.code == OpCode::kLoop || op.code == OpCode::kWhen) && shape_of(op).fits;
      passes += passes_slot(op) || meets ? 1 : 0;
      if (passes_slot(op)) {
        slots = std::max<std::int64_t>(slots, role_->pipes[at(op.symbol)].num_slots);
      }
    }
  }
  constexpr std::int64_t kMost = 2048;  // numbers, one after the other
  std::int64_t last = 2 * (passes * (slots + 1) + 1);
  if (last > kMost) refuse_turns();
  ExpandState state(state_.program, state_.graph.extents, nullptr, nullptr);
  SyncExpander syncs(state, /*by_units=*/false);
  const std::size_t num_counters = state.graph.counters.size();
  for (std::int64_t n = 0; n <= last; ++n) {
    if (!turns_end(parts, n, state, syncs)) refuse_turns();
    forget_worker(state.graph, num_counters);
  }
}

bool OpenLoops::turns_end(const std::vector<std::pair<int, const Op*>>& parts, std::int64_t n,
                          ExpandState& state, SyncExpander& syncs) {
  auto role = static_cast<int>(role_ - state_.program.roles.data());
  std::size_t first = state.graph.agents.size();
  syncs.start_worker(role, 0);
  syncs.add_meeting();
  for (auto [agent, loop] : parts) {
    state.recorder.start_agent(
        {.rank = 0, .phase = Phase::kRoles, .role = role, .worker = 0, .agent = agent});
    syncs.start_agent();
    syncs.forget(turns_of(*loop).got);  // of an earlier loop
    std::int64_t meetings = 0;
    try {
      for (std::int64_t i = 0; i < n; ++i) {
        walk_turn(*turns_of(*loop).body, meetings, parts.size(), syncs);
      }
    } catch (const Rejected&) {  // a slot is used in a wrong way
      return false;
    }
    if (syncs.awaits_dots()) return false;
  }
  return syncs.even() && come_through(state.graph, first);
}

void OpenLoops::walk_turn(const Block& block, std::int64_t& meetings, std::size_t parties,
                          SyncExpander& syncs) {
  for (const Op& op : block) {
    bool nested = op.code == OpCode::kLoop || op.code == OpCode::kWhen;
    if (!nested) {
      use_slots(op, syncs);
      continue;
    }
    if (is_register_choice(op)) {  // either way
      for (const Block& body : op.bodies) {
        for (const Op& inner : body) {
          for (int reg : inner.operands) syncs.read_register(inner, reg);
        }
      }
      continue;
    }
    meet_instead(op, static_cast<std::int64_t>(parties), ++meetings, syncs);
  }
}

}  // namespace stretto
