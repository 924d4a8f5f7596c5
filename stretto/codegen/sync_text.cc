// Signals, fences and named barriers.
#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/codegen/abort_text.h"
#include "stretto/codegen/agent_writer.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/sync_table.h"

namespace stretto {
namespace {

// The release or acquire of a row.
SyncSteps::const_iterator pivot(const SyncSteps& row) {
  return std::find_if(row.begin(), row.end(), [](const SyncStep& s) {
    return s.kind == StepKind::kRelease || s.kind == StepKind::kAcquire;
  });
}

// Lets, and an operation of the code at the end.
bool only_syncs(const Block& body, OpCode code) {
  auto is_let = [](const Op& op) { return op.code == OpCode::kLet; };
  return !body.empty() && body.back().code == code &&
         std::all_of(body.begin(), body.end() - 1, is_let);
}

const char* scope_text(const SyncStep& step) {
  STRETTO_CHECK(step.scope >= Scope::kGpu, "no instruction for " + describe(step));
  return step.scope == Scope::kSys ? "sys" : "gpu";
}

}  // namespace

int AgentWriter::sync_site(const Op& op) {
  bool packets = op.code == OpCode::kLoadPacket;
  kernel_.launch.sites.push_back({.role = site_.role_idx,
                                  .signal = packets ? -1 : op.symbol,
                                  .packets = packets ? op.region->tensor : -1,
                                  .file = op.loc.file,
                                  .line = op.loc.line});
  return static_cast<int>(kernel_.launch.sites.size()) - 1;
}

// The notify itself, in the scope that the table says.
void AgentWriter::notify_text(const Op& op) {
  std::int64_t first = kernel_.launch.signal_offsets[static_cast<std::size_t>(op.symbol)];
  delay_text(op.exprs[0]);
  timer_text("notify_ns");
  std::string count = expr(op.exprs[2]);
  if (!kernel_.aborted.empty())
    count = fmt::format("count_unless_aborted({}, {})", count, kernel_.aborted);
  line("add_release_{}(p.signals[{}] + {} + {}, {});",
       scope_text(*pivot(sync_table()[SyncRow::kNotify])), expr(op.exprs[1]), first,
       expr(op.exprs[0]), count);
  if (records()) {
    line("record_notify(lanes[{}], {} + {}, {}, notify_ns);", site_.lane, first, expr(op.exprs[0]),
         expr(op.exprs[1]));
  }
}

// Where an agent that multiplies waits and does not multiply, it reads the epoch once more:
// products take the registers that would hold it until then.
std::string AgentWriter::epoch_of_wait() const {
  bool apart_from_products =
      position_.first != nullptr && multiplies(agent_.body) && !multiplies(*position_.first);
  return apart_from_products ? kernel_.epoch_read : "epoch";
}

void AgentWriter::wait_text(const Op& op) {
  counter_text(op);
  wait_for_text(op, fmt::format("u64({})", threshold(op)));
}

void AgentWriter::counter_text(const Op& op) {
  line("const i64 counter = {} + {};",
       kernel_.launch.signal_offsets[static_cast<std::size_t>(op.symbol)], expr(op.exprs[0]));
}

std::string AgentWriter::threshold(const Op& wait) const {
  const Expr& at_least = wait.exprs[1];
  return never_negative(at_least) ? expr(at_least) : fmt::format("max({}, 0)", expr(at_least));
}

// Until `counter` has got `count` in this launch.
void AgentWriter::wait_for_text(const Op& op, const std::string& count) {
  delay_text(op.exprs[0]);
  timer_text("wait_ns");
  line(
      "wait_acquire_{}(p.signals[rank] + counter, {} * p.quotas[counter] + {}, p.watch, "
      "{}, counter{});",
      scope_text(*pivot(sync_table()[SyncRow::kWait])), epoch_of_wait(), count, sync_site(op),
      tells_of_abort() ? ", " + kernel_.aborted : "");
  if (records()) line("record_wait(lanes[{}], counter, wait_ns);", site_.lane);
}

// Who rings a copy queue rings it in any case: its waits have no deadline.
bool AgentWriter::tells_of_abort() const {
  return !kernel_.aborted.empty() && site_.heeds_aborts && !site_.rings;
}

// Whether a wait of another block, or of a launch before, has aborted: asked before this agent's
// first access, by every thread for itself, before it looks at the word.
void AgentWriter::take_over_abort() {
  if (kernel_.aborted.empty() || !reaches_others(agent_.body)) return;
  line("abort_if_rank_has(p.watch, {});", kernel_.aborted);
}

// Of the waits that follow each other, those that come after the one being written: each is made
// by a thread of another warp, and all threads meet after the last.
int AgentWriter::waits_to_come() const {
  const auto& [ops, at] = position_;
  int count = 0;
  for (std::size_t i = at + 1; i < ops->size(); ++i) {
    const Op& op = (*ops)[i];
    bool waits = op.code == OpCode::kWait ||
                 (op.code == OpCode::kLoop && only_syncs(op.bodies[0], OpCode::kWait));
    if (!waits || elided_.holds(op) || keeps(op)) break;
    ++count;
  }
  return alone() || records() || site_.rings ? 0 : std::min(count, values_.num_threads / 32 - 1);
}

// A loop that does nothing but notify, or nothing but wait: each iteration in a thread of its own.
bool AgentWriter::sync_loop(const Op& op) {
  const Block& body = op.bodies[0];
  if (alone() || body.empty()) return false;
  OpCode code = body.back().code;
  if (!only_syncs(body, OpCode::kNotify) && !only_syncs(body, OpCode::kWait)) return false;
  if (code == OpCode::kNotify) settle_before_notify();
  std::string var = var_text(program_, op.var);
  line("for (int {} = {} + int(team.tid), end_{} = {}; {} < end_{}; {} += {}) {{", var,
       expr(op.exprs[0]), var, expr(op.exprs[1]), var, var, var, values_.num_threads);
  ++depth_;
  for (const Op& o : body) {
    if (o.code == OpCode::kLet) emit(o);
  }
  code == OpCode::kNotify ? notify_text(body.back()) : wait_text(body.back());
  --depth_;
  line("}}");
  if (code == OpCode::kWait) settle_after_wait();
  return true;
}

// What a producer's threads copy asynchronously they have read once the slot is full that they
// filled last: then its source may be written again. Before the first, the phase that is waited for
// is the one before the barrier's first.
void AgentWriter::settle_copies() {
  if (!producer() || alone()) return;
  for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
    const PipeGroup& group = plan_.groups[i];
    auto first = static_cast<std::size_t>(group.pipes.front());
    bool fills = site_.role->pipes[first].producer == site_.agent_idx &&
                 !plan_.pipes[first].by_tma() && group.shares < 0;
    if (!fills) continue;
    auto g = static_cast<int>(i);
    std::string last =
        fmt::format("(ring{}.slot() + {}) % {}", g, group.num_slots - 1, group.num_slots);
    if (group.steps > 1) last = fmt::format("{} / {} * {}", last, group.steps, group.steps);
    line("mbarrier_wait_acquire_cta(&full{}[{}], ring{}.round() ^ (ring{}.slot() == 0 ? 1 : 0));",
         g, last, g, g);
  }
}

// The steps of the table up to the release, and from the acquire on.
void AgentWriter::settle_before_notify() {
  settle_copies();
  const SyncSteps& row = sync_table()[SyncRow::kNotify];
  for (auto step = row.begin(); step != pivot(row); ++step) step_text(*step);
}

void AgentWriter::settle_after_wait() {
  const SyncSteps& row = sync_table()[SyncRow::kWait];
  for (auto step = pivot(row) + 1; step != row.end(); ++step) step_text(*step);
}

// Of waits that a slot tells of (codegen/elided_waits.h): every thread has acquired the slot, which
// the thread that waited for them released. What is left is what each does for its own accesses.
void AgentWriter::settle_after_elided_waits() {
  for (const SyncStep& step : sync_table()[SyncRow::kWait]) {
    if (step.kind == StepKind::kProxyFence) step_text(step);
  }
}

// A role without TMA has nothing under way in the asynchronous proxy, and brings nothing there.
void AgentWriter::step_text(const SyncStep& step) {
  std::string by = alone() || step.by == Doers::kAll ? ""
                   : step.by == Doers::kIssuers      ? "if (team.tid % 128 == 0) "
                                                     : "if (team.tid == 0) ";
  switch (step.kind) {
    case StepKind::kCompleteStores:
      if (uses_tma()) line("{}tma_store_wait<0>();", by);
      return;
    case StepKind::kReadStores:
      if (uses_tma()) line("{}tma_store_wait_read<0>();", by);
      return;
    case StepKind::kMeet:
      if (!alone()) line("named_barrier_sync(team.barrier, {});", values_.num_threads);
      return;
    case StepKind::kFence:
      return line("{}fence_acq_rel_{}();", by, scope_text(step));
    case StepKind::kProxyFence:
      if (uses_tma()) line("{}fence_proxy_async_global();", by);
      return;
    default:
      throw InternalError("no text of its own: " + describe(step));
  }
}

// Whether threads of the consumer read slots, beside the tensor core.
bool AgentWriter::read_by_threads(const PipeGroup& group) const {
  auto consumer = static_cast<std::size_t>(
      site_.role->pipes[static_cast<std::size_t>(group.pipes.front())].consumer);
  const Agent& agent = site_.role->agents[consumer];
  return any_op(agent.body, [&](const Op& op) {
    if (dot_kind(agent, op) == DotKind::kSimt) return true;
    return op.code == OpCode::kPipeGet &&
           std::count(group.pipes.begin(), group.pipes.end(), op.symbol) > 0 &&
           plan_.agents[consumer].values[static_cast<std::size_t>(op.result)].used_elsewhere;
  });
}

// Whether only the own block fills the slots. Then fences of the block are enough, and cost less
// than the cluster's (docs/performance/loops.md).
bool AgentWriter::holds_own_rows(const PipeGroup& group) const {
  return std::ranges::all_of(group.pipes, [&](int pipe) {
    return plan_.pipes[static_cast<std::size_t>(pipe)].split == Split::kRows;
  });
}

// A notify of warpgroups that are apart: the last to come does what one thread does.
void AgentWriter::notify_apart(const Op& op) {
  bool met = false;
  for (const SyncStep& step : sync_table()[SyncRow::kNotify]) {
    if (step.kind == StepKind::kRelease) {
      notify_text(op);
    } else if (step.kind != StepKind::kMeet) {
      step_text(step);
    } else if (!std::exchange(met, true)) {
      line("if (meeting.come(team)) {{");
      ++depth_;
    }
  }
  STRETTO_CHECK(met, "a notify whose threads do not meet");
  --depth_;
  line("}}");
}

// A wait of theirs: each waits for itself.
void AgentWriter::wait_apart(const Op& op) {
  for (const SyncStep& step : sync_table()[SyncRow::kWait]) {
    if (step.kind == StepKind::kAcquire) {
      line("if (team.tid % 128 == 0) {{");
      ++depth_;
      wait_text(op);
      --depth_;
      line("}}");
    } else if (step.kind == StepKind::kMeet) {
      line("meet_in_warpgroup();");
    } else {
      step_text(step);
    }
  }
}

void AgentWriter::sync(const Op& op) {
  std::string first = alone() ? "true" : "team.tid == 0";
  switch (op.code) {
    case OpCode::kNotify:
    case OpCode::kWait: {
      bool notifies = op.code == OpCode::kNotify;
      if (apart()) return notifies ? notify_apart(op) : wait_apart(op);
      if (!notifies && remembers_waits_) return remembered_wait(op);
      if (!notifies && keeps(op)) return kept_wait(op);
      if (notifies && issues_beside()) {
        refuse(op.loc, "a producer that notifies and has pipes of TMA and of threads");
      }
      if (notifies) settle_before_notify();
      int later = notifies ? 0 : waits_to_come();
      line("if ({}) {{", later > 0 ? fmt::format("team.tid == {}", 32 * later) : first);
      ++depth_;
      notifies ? notify_text(op) : wait_text(op);
      --depth_;
      line("}}");
      if (!notifies && later == 0) settle_after_wait();
      return;
    }
    case OpCode::kFence:
      settle_copies();
      for (const SyncStep& step : sync_table()[SyncRow::kFence]) step_text(step);
      return;
    default:
      if (alone()) {
        refuse(op.loc, "a producer of one thread at a named barrier, which counts warps");
      }
      settle_copies();
      line("named_barrier_{}({}, {});", op.code == OpCode::kArrive ? "arrive" : "sync",
           barrier_id(op), barrier_threads(op.symbol));
  }
}

// Who has the named barrier of the block, which two roles may share: "" while nobody does.
std::string& AgentWriter::user_of_barrier(int id) {
  int beside = site_.role->resource.beside;
  return kernel_.barriers[{beside >= 0 ? beside : site_.role_idx, id}];
}

void AgentWriter::claim_barrier(int id, const std::string& user) {
  std::string& has = user_of_barrier(id);
  if (has.empty()) has = user;
  if (id < kNumNamedBarriers && has == user) return;
  refuse(agent_.body.empty() ? site_.role->loc : agent_.body[0].loc,
         fmt::format("{} needs a named barrier, which is one too many: a block has {}", user,
                     int{kNumNamedBarriers}));
}

// One for each of the agent's warpgroups: from `first` on, where nobody has them, else the last
// that are free behind those of agents and of the program.
int AgentWriter::claim_warpgroups(int first, const std::string& use) {
  std::string user = fmt::format("{} of '{}' in role '{}'", use, agent_.name, site_.role->name);
  auto num_barriers = [](const Role& role) {
    return static_cast<int>(role.agents.size() + role.barriers.size());
  };
  int end = plan_.first_barrier + num_barriers(*site_.role);
  for (const Role& role : program_.roles) {
    bool guest = role.resource.beside >= 0 && role.resource.beside == site_.role_idx;
    if (guest) end += num_barriers(role);
  }
  auto are_free = [&](int at) {
    for (int w = 0; w < values_.warpgroups(); ++w) {
      const std::string& has = user_of_barrier(at + w);
      if (!has.empty() && has != user) return false;
    }
    return at >= end;
  };
  int at = first;
  if (!are_free(first)) at = kNumNamedBarriers - values_.warpgroups();
  while (at > end && !are_free(at)) --at;
  for (int w = 0; w < values_.warpgroups(); ++w) claim_barrier(at + w, user);
  return at;
}

int AgentWriter::barrier_id(const Op& op) {
  int id = plan_.first_barrier + static_cast<int>(site_.role->agents.size()) + op.symbol;
  const Barrier& barrier = site_.role->barriers[static_cast<std::size_t>(op.symbol)];
  claim_barrier(id, fmt::format("barrier '{}' of role '{}'", barrier.name, site_.role->name));
  return id;
}

int AgentWriter::barrier_threads(int barrier) const {
  auto names = [&](const Op& op) {
    return (op.code == OpCode::kArrive || op.code == OpCode::kBarrierSync) && op.symbol == barrier;
  };
  int threads = 0;
  for (std::size_t a = 0; a < site_.role->agents.size(); ++a) {
    if (any_op(site_.role->agents[a].body, names)) threads += plan_.agents[a].num_threads;
  }
  return threads;
}

}  // namespace stretto
