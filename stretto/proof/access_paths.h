// The ways in which generated code may make an access: by the agent's threads, and where layouts
// allow it by TMA. The proof looks at all of them.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <unordered_map>

#include "stretto/ir/value_plan.h"
#include "stretto/proof/access_index.h"
#include "stretto/proof/happens_before.h"

namespace stretto {

// One or two ways. The proof asks for them at every pair of accesses.
template <typename Way>
class Ways {
 public:
  Ways(Way first) : ways_{first, first}, count_(1) {}
  void add(Way second) {
    ways_[1] = second;
    count_ = 2;
  }
  const Way* begin() const { return ways_.data(); }
  const Way* end() const { return ways_.data() + count_; }

 private:
  std::array<Way, 2> ways_;
  std::size_t count_;
};

class AccessPaths {
 public:
  // What has to be over of the access, and who makes it: one entry per way.
  Ways<Past> pasts(const InstanceGraph& graph, const AccessRef& ref);
  Ways<Path> paths(const InstanceGraph& graph, const AccessRef& ref);
  bool bulk(const InstanceGraph& graph, const AccessRef& ref);
  // By the layout of what is loaded or stored: of equal boxes, accesses with the same number touch
  // each element with the same thread, or with threads of its warp. kAnyThread: as may be.
  static constexpr int kAnyThread = -1;
  int dealt_out(const InstanceGraph& graph, const AccessRef& ref);
  // Whether an agent's accesses to the same elements, the first before the second, need no more
  // between them. A thread makes its own in its order, others theirs at any time, until all meet at
  // a notify or wait; TMA keeps no order. Copy queues work one by one.
  bool in_turn(const InstanceGraph& graph, const SyncTable& table, const AccessRef& first,
               const AccessRef& second);
  std::string why_out_of_turn(const InstanceGraph& graph, const AccessRef& first,
                              const AccessRef& second);

 private:
  bool keep_turn(const InstanceGraph& graph, const AccessRef& first, const AccessRef& second);
  int layout_of(const InstanceGraph& graph, const AccessRef& ref);

  std::unordered_map<const Op*, bool> bulk_;
  std::unordered_map<const Op*, int> layouts_;
  std::map<std::string, int> layout_numbers_;
  std::unordered_map<const Agent*, AgentPlan> plans_;
};

// Whether any worker may have the tile of either, at any time: such a role neither waits nor
// notifies.
bool of_one_ticket_role(const InstanceGraph& graph, const AccessRef& x, const AccessRef& y);

// Whether the worker is several blocks, which a fence does not reach.
bool in_cluster(const InstanceGraph& graph, const AccessRef& ref);

// Of an agent's accesses, the first before the second.
bool has_fence(const AgentTrace& trace, const AccessRef& first, const AccessRef& second);

// Why `holds` is not: which step of which synchronisation is missing for accesses that are in order
// as far as time goes. Empty where no single row would help.
std::string missing_steps(const HappensBefore& order, const SyncTable& table, Past past, Path path,
                          const HappensBefore::Holds& holds);

}  // namespace stretto
