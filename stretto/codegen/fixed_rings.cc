#include "stretto/codegen/fixed_rings.h"

#include <algorithm>
#include <numeric>

namespace stretto {
namespace {

constexpr int kMostCopies = 8;

}  // namespace

bool multiplies(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    return op.code == OpCode::kDotAsync ||
           std::any_of(op.bodies.begin(), op.bodies.end(), multiplies);
  });
}

bool releases_previous(const Op& op, const Op& loop) {
  return op.code == OpCode::kWhen && loop.code == OpCode::kLoop &&
         op.exprs[0].same(loop.exprs[0] < Expr::var(loop.var)) &&
         std::all_of(op.bodies[0].begin(), op.bodies[0].end(),
                     [](const Op& o) { return o.code == OpCode::kPipeRelease; });
}

FixedRings::FixedRings(const RolePlan& plan, const Role& role, int agent)
    : now_(plan.groups.size()) {
  const Agent& ir = role.agents[static_cast<std::size_t>(agent)];
  for (const PipeGroup& group : plan.groups) {
    rings_.push_back({group.pipes.front(), group.pipes.back(), group.num_slots});
  }
  if (ir.kind != AgentKind::kConsumer || !multiplies(ir.body)) return;
  for (int r = 0; r < static_cast<int>(rings_.size()); ++r) {
    Ring& ring = rings_[static_cast<std::size_t>(r)];
    if (role.pipes[static_cast<std::size_t>(ring.first)].consumer != agent) continue;
    fails_ = false;
    proposed_ = copies_;
    bool own = !plan.groups[static_cast<std::size_t>(r)].is_shared();
    ring.fixed = own && after(ir.body, nullptr, r, {}) == At{} && !fails_;
    if (ring.fixed) copies_ = std::move(proposed_);
  }
}

FixedRings::At FixedRings::moved(int ring, At at, int got, int freed) const {
  int slots = rings_[static_cast<std::size_t>(ring)].num_slots;
  auto wrapped = [slots](int slot) { return ((slot % slots) + slots) % slots; };
  return {wrapped(at.got + got), wrapped(at.freed + freed)};
}

// Barriers are waited for with a group's first pipe and passed with its last.
FixedRings::At FixedRings::after(const Block& block, const Op* loop, int ring, At at) {
  const Ring& r = rings_[static_cast<std::size_t>(ring)];
  for (const Op& op : block) {
    if (op.code == OpCode::kPipeGet && op.symbol == r.last) at = moved(ring, at, 1, 0);
    if (op.code == OpCode::kPipeRelease && op.symbol == r.last) at = moved(ring, at, 0, 1);
    if (op.code == OpCode::kLoop) {
      at = after_loop(op, ring, at);
    } else if (loop != nullptr && releases_previous(op, *loop)) {
      at = after(op.bodies[0], nullptr, ring, at);
    } else if (!op.bodies.empty()) {
      At end = after(op.bodies[0], nullptr, ring, at);
      At other = op.bodies.size() > 1 ? after(op.bodies[1], nullptr, ring, at) : at;
      fails_ |= end != other;
      at = end;
    }
  }
  return at;
}

int FixedRings::releases_behind(const Op& loop, int ring) const {
  int count = 0;
  for (const Op& op : loop.bodies[0]) {
    if (!releases_previous(op, loop)) continue;
    for (const Op& release : op.bodies[0]) {
      count += release.symbol == rings_[static_cast<std::size_t>(ring)].last ? 1 : 0;
    }
  }
  return count;
}

// A release that is an iteration behind counts as if there were one in the first iteration, too.
FixedRings::At FixedRings::after_loop(const Op& loop, int ring, At at) {
  int behind = releases_behind(loop, ring);
  at = moved(ring, at, 0, -behind);
  At end = after(loop.bodies[0], &loop, ring, at);
  int slots = rings_[static_cast<std::size_t>(ring)].num_slots;
  auto cycle = [&](int from, int to) {
    int step = ((to - from) % slots + slots) % slots;
    return slots / std::gcd(step, slots);
  };
  int copies = std::lcm(cycle(at.got, end.got), cycle(at.freed, end.freed));
  Expr trips = loop.exprs[1] - loop.exprs[0];
  bool whole = copies == 1 || (trips.is_const() && trips.const_value() % copies == 0);
  auto& all = proposed_.try_emplace(&loop, 1).first->second;
  all = std::lcm(all, copies);
  fails_ |= !whole || all > kMostCopies || (behind > 0 && !trips.is_const());
  return at;
}

int FixedRings::copies(const Op& loop) const {
  auto found = copies_.find(&loop);
  return found == copies_.end() ? 1 : found->second;
}

void FixedRings::enter(const Op& loop) {
  for (int r = 0; r < static_cast<int>(rings_.size()); ++r) {
    if (!holds(r)) continue;
    At& at = now_[static_cast<std::size_t>(r)];
    at = moved(r, at, 0, -releases_behind(loop, r));
  }
}

bool FixedRings::pass_next(int group) {
  At& at = now_[static_cast<std::size_t>(group)];
  at = moved(group, at, 1, 0);
  return at.got == 0;
}

void FixedRings::pass_oldest(int group) {
  At& at = now_[static_cast<std::size_t>(group)];
  at = moved(group, at, 0, 1);
}

}  // namespace stretto
