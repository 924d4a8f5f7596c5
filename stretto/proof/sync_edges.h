// What the table of the lowered code (sync_power.h) says about the edges of an execution: which of
// them hold, what is over for whoever sees an event, and up to where an agent may rely on what it
// has acquired. Comes before happens_before.h, which orders events by it.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "stretto/proof/sync_power.h"
#include "stretto/proof/timeline.h"

namespace stretto {

// A copy notes for itself what it finds when asked: one for each thread.
class SyncEdges {
 public:
  // Keeps a reference to the timeline's graphs.
  SyncEdges(const Timeline& timeline, const SyncPowers& powers);

  const SyncPowers& powers() const { return powers_; }
  const RowPower& power(SyncRow row) const { return powers_[row]; }
  bool uses(SyncRow row) const { return rows_used_[static_cast<std::size_t>(row)]; }
  // on_start only notifies.
  bool plain_start() const { return plain_start_; }

  // Whether an edge is as wide as its scope has to be; all of those in use.
  bool hold() const { return all_hold_; }
  bool holds(SyncRow from, SyncRow to, Scope need) const;
  bool holds(int counter, int notifier, int waiter) const;
  // Whether a packet that one agent stores comes with all that another has to know to load it.
  bool packet_arrives(int from, int to) const;

  // Whether the agent's accesses of the kind before the event are over for whoever sees it.
  bool carries(int agent, const Sync& s, Past past) const;
  // A packet is seen when it has come, and says nothing of other writes.
  bool carried_by_packets(Past past) const;
  // Whether a bulk load ends where the slot of its put is got.
  bool lands() const;
  // Per place of the agent the last one, not after it, up to which everything acquired is covered;
  // -1 is the start of the launch, which covers all.
  const std::vector<int>& covered(const AgentTrace& trace, Path path) const;
  bool covers(const Sync& s, Path path) const;

  bool is_queue(int agent) const;
  bool is_clustered(int role) const;

 private:
  void survey(const Timeline& timeline);
  Scope scope_between(int x, int y) const;

  const InstanceGraph& graph_;  // of the first launch: all have the same agents and counters
  SyncPowers powers_;
  std::array<bool, kNumSyncRows> rows_used_{};
  bool all_hold_ = true, plain_start_ = true;
  // Found when first asked for, per Path.
  mutable std::array<std::unordered_map<const AgentTrace*, std::vector<int>>, 2> covered_;
};

}  // namespace stretto
