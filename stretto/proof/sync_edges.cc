#include "stretto/proof/sync_edges.h"

#include "stretto/base/at.h"

namespace stretto {
SyncEdges::SyncEdges(const Timeline& timeline, const SyncPowers& powers)
    : graph_(timeline.launch(0)), powers_(powers) {
  survey(timeline);
}

void SyncEdges::survey(const Timeline& timeline) {
  const Program& program = *graph_.program;
  bool any_queue = false, any_cluster = false;
  for (std::size_t r = 0; r < program.roles.size(); ++r) {
    any_queue |= program.roles[r].resource.kind == ResourceKind::kCopyEngine;
    any_cluster |= is_clustered(static_cast<int>(r));
  }
  auto use = [&](SyncRow row) { rows_used_[static_cast<std::size_t>(row)] = true; };
  use(SyncRow::kRolesDone);
  for (const InstanceGraph* graph : timeline.launches) {
    for (const AgentTrace& trace : graph->agents) {
      for (const Sync& s : trace.syncs) {
        bool acquires = s.kind == SyncKind::kWait || s.kind == SyncKind::kPacketLoad;
        if (!acquires) use(release_row(graph_, s));
        if (trace.phase == Phase::kStart) plain_start_ &= s.kind == SyncKind::kNotify;
      }
      if (trace.phase == Phase::kStart) plain_start_ &= trace.accesses.empty();
    }
  }
  if (!plain_start_) use(SyncRow::kStartDone);
  if (uses(SyncRow::kPipeFill)) use(SyncRow::kPipePut);
  Scope between = program.world_size > 1 || any_queue ? Scope::kSys : Scope::kGpu;
  Scope freed = any_cluster ? Scope::kGpu : Scope::kCta;
  auto look_at = [&](SyncRow from, SyncRow to, Scope need) {
    if (uses(from) || uses(to)) all_hold_ &= holds(from, to, need);
  };
  look_at(SyncRow::kNotify, SyncRow::kWait, between);
  look_at(SyncRow::kPipeFill, SyncRow::kPipeGet, Scope::kCta);
  look_at(SyncRow::kPipeRelease, SyncRow::kPipeClaim, freed);
  look_at(SyncRow::kBarrierReach, SyncRow::kBarrierPass, Scope::kCta);
  look_at(SyncRow::kStorePacket, SyncRow::kLoadPacket, between);
  look_at(SyncRow::kStartDone, SyncRow::kStartDone, Scope::kGpu);
  look_at(SyncRow::kRolesDone, SyncRow::kRolesDone, Scope::kGpu);
}

bool SyncEdges::holds(SyncRow from, SyncRow to, Scope need) const {
  return power(from).release >= need && power(to).acquire >= need;
}

bool SyncEdges::holds(int counter, int notifier, int waiter) const {
  const Counter& c = graph_.counters[at(counter)];
  switch (c.kind) {
    case CounterKind::kSignal:
      return holds(SyncRow::kNotify, SyncRow::kWait, scope_between(notifier, waiter));
    case CounterKind::kPipeFull:
      return holds(SyncRow::kPipeFill, SyncRow::kPipeGet, Scope::kCta);
    case CounterKind::kPipeEmpty:
      // The blocks of a cluster release each other's slots.
      return holds(SyncRow::kPipeRelease, SyncRow::kPipeClaim,
                   is_clustered(c.role) ? Scope::kGpu : Scope::kCta);
    case CounterKind::kPipeTurn:
      return holds(SyncRow::kPipeRelease, SyncRow::kPipeGet, Scope::kCta);
    case CounterKind::kMeeting:  // only to show that launches end
      return false;
    case CounterKind::kBarrier:
      return holds(SyncRow::kBarrierReach, SyncRow::kBarrierPass, Scope::kCta);
  }
  return false;
}

bool SyncEdges::packet_arrives(int from, int to) const {
  return holds(SyncRow::kStorePacket, SyncRow::kLoadPacket, scope_between(from, to));
}

Scope SyncEdges::scope_between(int x, int y) const {
  bool far = graph_.agents[at(x)].rank != graph_.agents[at(y)].rank || is_queue(x) || is_queue(y);
  return far ? Scope::kSys : Scope::kGpu;
}

bool SyncEdges::is_queue(int agent) const {
  int role = graph_.agents[at(agent)].role;
  return role >= 0 && graph_.program->roles[at(role)].resource.kind == ResourceKind::kCopyEngine;
}

bool SyncEdges::is_clustered(int role) const {
  return role >= 0 && graph_.program->roles[at(role)].resource.cluster_size > 1;
}

bool SyncEdges::carries(int agent, const Sync& s, Past past) const {
  if (s.kind == SyncKind::kWait || s.kind == SyncKind::kPacketLoad) return false;
  // The blocks of a cluster do not meet at a fence.
  if (s.kind == SyncKind::kFence && is_clustered(graph_.agents[at(agent)].role)) return false;
  SyncRow row = release_row(graph_, s);
  auto p = static_cast<std::size_t>(past);
  // A put by TMA has nobody meet; what its threads read themselves is over where they fill.
  if (row == SyncRow::kPipeFill && past != Past::kRead && !power(SyncRow::kPipePut).carries[p]) {
    return false;
  }
  return power(row).carries[p];
}

bool SyncEdges::carried_by_packets(Past past) const {
  return !uses(SyncRow::kStorePacket) || past == Past::kRead || past == Past::kOrder;
}

bool SyncEdges::lands() const {
  const RowPower &full = power(SyncRow::kPipePut), &got = power(SyncRow::kPipeGet);
  return full.lands && full.release >= Scope::kCta && got.acquire >= Scope::kCta &&
         got.covers[static_cast<std::size_t>(Path::kThreads)];
}

bool SyncEdges::covers(const Sync& s, Path path) const {
  bool acquires = s.kind == SyncKind::kWait || s.kind == SyncKind::kPacketLoad;
  if (!acquires && s.kind != SyncKind::kFence) return false;
  SyncRow row = acquires ? acquire_row(graph_, s) : SyncRow::kFence;
  return power(row).covers[static_cast<std::size_t>(path)];
}

const std::vector<int>& SyncEdges::covered(const AgentTrace& trace, Path path) const {
  auto p = static_cast<std::size_t>(path);
  auto [it, is_new] = covered_[p].try_emplace(&trace);
  if (!is_new) return it->second;
  std::vector<int>& out = it->second;
  bool begins =
      trace.phase == Phase::kStart ||
      (trace.phase == Phase::kRoles && (plain_start_ || power(SyncRow::kStartDone).covers[p])) ||
      (trace.phase == Phase::kEnd && power(SyncRow::kRolesDone).covers[p]);
  int last = begins ? 0 : -1;
  out.push_back(last);
  for (int pos = 0; pos < static_cast<int>(trace.syncs.size()); ++pos) {
    const Sync& s = trace.syncs[at(pos)];
    if (s.choice == TableChoices::kAlways && covers(s, path)) last = pos + 1;
    out.push_back(last);
  }
  return out;
}

}  // namespace stretto
