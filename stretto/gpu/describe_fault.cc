#include "stretto/gpu/describe_fault.h"

#include <algorithm>
#include <string>
#include <utility>

#include "stretto/codegen/table_text.h"
#include "stretto/ir/known_vars.h"

namespace stretto {
namespace {

struct AbortedWait {
  int role = -1;    // -1: on_start or on_end
  int signal = -1;  // of the program
  std::int64_t channel = -1, at_least = 0;
  int worker = -1;  // of the role; -1: not known
};

struct StuckWait {
  std::string role;  // "on_start", "on_end" or the role's name; "" where nothing waits so
  // The worker's first that waits so, or any worker's where it is not known.
  std::int64_t tile = -1;
};

constexpr std::int64_t kMaxSteps = 10'000'000;  // some 0.1 s; the record does without after that

bool waits(const Block& block, int signal) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    return (op.code == OpCode::kWait && op.symbol == signal) ||
           std::any_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return waits(body, signal); });
  });
}

class Finder {
 public:
  Finder(KnownVars vars, const AbortedWait& wait) : wait_(wait), vars_(std::move(vars)) {}

  // Whether the body has it, run to its end.
  bool find(const Block& block) {
    return std::any_of(block.begin(), block.end(), [&](const Op& op) { return find(op); });
  }

  // The first such tile, or -1.
  std::int64_t find(const Role& role) {
    bool any = std::any_of(role.agents.begin(), role.agents.end(),
                           [&](const Agent& agent) { return waits(agent.body, wait_.signal); });
    if (!any || !vars_.knows(role.num_tiles)) return -1;
    std::int64_t num_tiles = vars_(role.num_tiles);
    std::int64_t step = wait_.worker >= 0 ? role.resource.num_workers : 1;
    for (std::int64_t t = std::max(wait_.worker, 0); t < num_tiles; t += step) {
      vars_.set(role.tile_var, t);
      for (const Agent& agent : role.agents) {
        if (find(agent.body)) return t;
      }
    }
    return -1;
  }

 private:
  bool find(const Op& op) {
    if (++steps_ > kMaxSteps) return false;
    switch (op.code) {
      case OpCode::kLet:
        vars_.set(op.var, op.exprs[0]);
        return false;
      case OpCode::kWait:
        return is_it(op);
      case OpCode::kLoop: {
        if (!waits(op.bodies[0], wait_.signal)) return false;
        if (!vars_.knows(op.exprs[0]) || !vars_.knows(op.exprs[1])) return false;
        std::int64_t end = vars_(op.exprs[1]);
        for (std::int64_t i = vars_(op.exprs[0]); i < end && steps_ <= kMaxSteps; ++i) {
          vars_.set(op.var, i);
          if (find(op.bodies[0])) return true;
        }
        return false;
      }
      case OpCode::kWhen:
        if (!vars_.knows(op.exprs[0])) return find(op.bodies[0]) || find(op.bodies[1]);
        return find(op.bodies[vars_(op.exprs[0]) != 0 ? 0 : 1]);
      default:
        return false;
    }
  }

  bool is_it(const Op& op) {
    if (op.symbol != wait_.signal || !vars_.knows(op.exprs[0]) || !vars_.knows(op.exprs[1]))
      return false;
    return vars_(op.exprs[0]) == wait_.channel && vars_(op.exprs[1]) == wait_.at_least;
  }

  const AbortedWait& wait_;
  KnownVars vars_;
  std::int64_t steps_ = 0;
};

// `vars`: those that the waiting rank's launch began with.
StuckWait find_stuck_wait(const Program& schedule, KnownVars vars, const AbortedWait& wait) {
  Finder finder(std::move(vars), wait);
  StuckWait found;
  if (wait.role >= 0) {
    const Role& role = schedule.roles[static_cast<std::size_t>(wait.role)];
    found = {.role = role.name, .tile = finder.find(role)};
  } else if (finder.find(schedule.on_start.body)) {
    found.role = "on_start";
  } else if (finder.find(schedule.on_end.body)) {
    found.role = "on_end";
  }
  return found;
}

// `record` has what the device says of a wait for a signal.
void describe_wait(const Program& program, const LaunchPlan& launch, const Quotas& quotas,
                   const std::vector<std::int64_t>* extents, const DeviceFault& f,
                   const WaitSite& site, FaultRecord& record) {
  auto signal = static_cast<std::size_t>(site.signal);
  record.signal = program.signals[signal].name;
  record.channel = f.counter - launch.signal_offsets[signal];
  std::int64_t quota =
      quotas[signal][static_cast<std::size_t>(f.rank)][static_cast<std::size_t>(record.channel)];
  if (quota > 0 && record.expected > 0) {  // without what the launches before have added
    std::int64_t before = (record.expected - 1) / quota * quota;
    record.expected -= before;
    record.seen -= before;
  }
  record.waited_for = only_notifier(program, f.rank, site.signal, record.channel);
  if (extents == nullptr) return;
  KnownVars vars(initial_vars(program, f.rank, *extents));
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    if (program.vars[v].kind == VarKind::kScalar) vars.forget(static_cast<int>(v));
  }
  AbortedWait wait{.role = site.role,
                   .signal = site.signal,
                   .channel = record.channel,
                   .at_least = record.expected};
  if (site.first_block >= 0) {
    const Role& role = program.roles[static_cast<std::size_t>(site.role)];
    wait.worker = (f.block - site.first_block) / role.resource.cluster_size;
  }
  StuckWait found = find_stuck_wait(program, std::move(vars), wait);
  if (!found.role.empty()) record.role = found.role;
  record.tile = found.tile;
}

}  // namespace

FaultRecord describe_fault(const Program& schedule, const LaunchPlan& launch, const Quotas& quotas,
                           const std::vector<std::int64_t>* extents, const DeviceFault& f) {
  FaultRecord record{.program = schedule.name,
                     .rank = f.rank,
                     .expected = static_cast<std::int64_t>(f.expected),
                     .seen = static_cast<std::int64_t>(f.seen),
                     .reason = "deadline"};
  if (f.site < 0 || static_cast<std::size_t>(f.site) >= launch.sites.size()) return record;
  const WaitSite& site = launch.sites[static_cast<std::size_t>(f.site)];
  if (site.role >= 0) record.role = schedule.roles[static_cast<std::size_t>(site.role)].name;
  if (site.table >= 0)
    record.reason = describe_broken_table(schedule, site.table, f.counter, record.seen);
  if (site.packets >= 0) {
    record.signal = "packet of " + schedule.tensors[static_cast<std::size_t>(site.packets)].name;
  }
  if (site.signal >= 0) describe_wait(schedule, launch, quotas, extents, f, site, record);
  return record;
}

}  // namespace stretto
