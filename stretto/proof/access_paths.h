// The ways in which generated code may make an access: by the agent's threads, and where layouts
// allow it by TMA. The proof looks at all of them.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <unordered_map>

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
  // Whether an agent's accesses to the same elements need nothing between them. Threads write in
  // their order; TMA keeps none.
  bool keep_turn(const InstanceGraph& graph, const AccessRef& first, const AccessRef& second);

 private:
  std::unordered_map<const Op*, bool> bulk_;
};

// Of an agent's accesses, the first before the second.
bool has_fence(const AgentTrace& trace, const AccessRef& first, const AccessRef& second);

// Why `holds` is not: which step of which synchronisation is missing for accesses that are in order
// as far as time goes. Empty where no single row would help.
std::string missing_steps(const HappensBefore& order, const SyncTable& table, Past past, Path path,
                          const HappensBefore::Holds& holds);

}  // namespace stretto
