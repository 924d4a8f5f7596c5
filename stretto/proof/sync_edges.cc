// What the table of the lowered code says about the edges of happens-before (happens_before.h).
#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/proof/happens_before.h"

namespace stretto {
void HappensBefore::survey_rows() {
  const Program& program = *graph_.program;
  bool any_queue = false, any_cluster = false;
  for (std::size_t r = 0; r < program.roles.size(); ++r) {
    any_queue |= program.roles[r].resource.kind == ResourceKind::kCopyEngine;
    any_cluster |= clustered(static_cast<int>(r));
  }
  auto use = [&](SyncRow row) { rows_used_[static_cast<std::size_t>(row)] = true; };
  use(SyncRow::kRolesDone);
  for (const InstanceGraph* graph : timeline_.launches) {
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
  auto holds = [&](SyncRow from, SyncRow to, Scope need) {
    if (uses(from) || uses(to)) edges_hold_ &= edge_holds(from, to, need);
  };
  holds(SyncRow::kNotify, SyncRow::kWait, between);
  holds(SyncRow::kPipeFill, SyncRow::kPipeGet, Scope::kCta);
  holds(SyncRow::kPipeRelease, SyncRow::kPipeClaim, freed);
  holds(SyncRow::kBarrierReach, SyncRow::kBarrierPass, Scope::kCta);
  holds(SyncRow::kStorePacket, SyncRow::kLoadPacket, between);
  holds(SyncRow::kStartDone, SyncRow::kStartDone, Scope::kGpu);
  holds(SyncRow::kRolesDone, SyncRow::kRolesDone, Scope::kGpu);
}

bool HappensBefore::edge_holds(SyncRow from, SyncRow to, Scope need) const {
  return power(from).release >= need && power(to).acquire >= need;
}

bool HappensBefore::edge_holds(int counter, int notifier, int waiter) const {
  const Counter& c = graph_.counters[at(counter)];
  switch (c.kind) {
    case CounterKind::kSignal:
      return edge_holds(SyncRow::kNotify, SyncRow::kWait, scope_between(notifier, waiter));
    case CounterKind::kPipeFull:
      return edge_holds(SyncRow::kPipeFill, SyncRow::kPipeGet, Scope::kCta);
    case CounterKind::kPipeEmpty:
      // The blocks of a cluster release each other's slots.
      return edge_holds(SyncRow::kPipeRelease, SyncRow::kPipeClaim,
                        clustered(c.role) ? Scope::kGpu : Scope::kCta);
    case CounterKind::kPipeTurn:
      return edge_holds(SyncRow::kPipeRelease, SyncRow::kPipeGet, Scope::kCta);
    case CounterKind::kMeeting:  // only to show that launches end
      return false;
    case CounterKind::kBarrier:
      return edge_holds(SyncRow::kBarrierReach, SyncRow::kBarrierPass, Scope::kCta);
  }
  return false;
}

bool HappensBefore::packet_arrives(int from, int to) const {
  return edge_holds(SyncRow::kStorePacket, SyncRow::kLoadPacket, scope_between(from, to));
}

Scope HappensBefore::scope_between(int x, int y) const {
  bool far = graph_.agents[at(x)].rank != graph_.agents[at(y)].rank || queue(x) || queue(y);
  return far ? Scope::kSys : Scope::kGpu;
}

bool HappensBefore::queue(int agent) const {
  int role = graph_.agents[at(agent)].role;
  return role >= 0 && graph_.program->roles[at(role)].resource.kind == ResourceKind::kCopyEngine;
}

bool HappensBefore::clustered(int role) const {
  return role >= 0 && graph_.program->roles[at(role)].resource.cluster_size > 1;
}

std::optional<Place> HappensBefore::landed(const Place& put) const {
  const RowPower &full = power(SyncRow::kPipePut), &got = power(SyncRow::kPipeGet);
  bool lands = full.lands && full.release >= Scope::kCta && got.acquire >= Scope::kCta &&
               got.covers[static_cast<std::size_t>(Path::kThreads)];
  if (!lands || put.landed.agent < 0) return std::nullopt;
  return Place{put.landed.agent, put.launch, put.landed.pos};
}

std::int32_t HappensBefore::covered_clock(Clocks& clocks, const Place& y, Path path,
                                          int choice) const {
  int pos = covered(y, path)[at(y.pos)];
  const auto& syncs = timeline_.trace(y.agent, y.launch).syncs;
  for (int w : waits_of(y, choice)) {
    if (w >= pos && w < y.pos && covers(syncs[at(w)], path)) pos = w + 1;
  }
  if (pos < 0) return clocks.at->start[at(graph_.agents[at(y.agent)].rank)][at(y.launch)];
  return clock_in_choice(clocks, {y.agent, y.launch, pos}, choice);
}

bool HappensBefore::covers(const Sync& s, Path path) const {
  bool acquires = s.kind == SyncKind::kWait || s.kind == SyncKind::kPacketLoad;
  if (!acquires && s.kind != SyncKind::kFence) return false;
  SyncRow row = acquires ? acquire_row(graph_, s) : SyncRow::kFence;
  return power(row).covers[static_cast<std::size_t>(path)];
}

// Per place of the agent the last one, not after it, up to which everything acquired is covered; -1
// is the start of the launch, which covers all.
const std::vector<int>& HappensBefore::covered(const Place& y, Path path) const {
  auto p = static_cast<std::size_t>(path);
  const AgentTrace& trace = timeline_.trace(y.agent, y.launch);
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

bool HappensBefore::fenced(const Place& x, const Place& y, Past past, Path path, int choice) const {
  const RowPower& row = power(SyncRow::kFence);
  bool enough = past < Past::kBulkLoad && row.carries[static_cast<std::size_t>(past)] &&
                row.covers[static_cast<std::size_t>(path)] &&
                !clustered(graph_.agents[at(x.agent)].role);
  if (!enough || x.agent != y.agent || x.launch != y.launch) return false;
  const auto& syncs = timeline_.trace(x.agent, x.launch).syncs;
  return std::any_of(syncs.begin() + x.pos, syncs.begin() + y.pos, [&](const Sync& s) {
    return s.kind == SyncKind::kFence && choices_.implies(choice, s.choice);
  });
}

std::vector<SyncRow> HappensBefore::missing_rows(const Holds& holds) const {
  std::vector<SyncRow> out;
  for (std::size_t r = 0; r < kNumSyncRows; ++r) {
    SyncPowers powers = powers_;
    powers.rows[r] = kEverything;
    if (holds(HappensBefore(timeline_, execution_, powers))) out.push_back(static_cast<SyncRow>(r));
  }
  return out;
}

}  // namespace stretto
