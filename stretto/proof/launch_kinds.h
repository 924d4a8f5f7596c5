// The program's sizes by how their launches synchronise, and what launches of one kind touch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

// One combination of extents and tables.
struct SizedGraph {
  const InstanceGraph* graph = nullptr;
  std::string where;  // for a report
};

// Sizes whose launches have the same synchronisation. In any sequence of launches each of them may
// stand for the other: nothing but the accesses of that launch changes.
struct LaunchKind {
  std::vector<SizedGraph> cases;
  std::optional<InstanceGraph> merged;  // where there are several, or one that stands for several

  // With all accesses that a launch of any of the sizes makes to buffers that other ranks touch,
  // too (Access::of_case says whose). What is ordered between launches of these is so for all
  // pairs of sizes.
  const InstanceGraph& touched() const { return merged ? *merged : *cases[0].graph; }
};

// In the order of `cases`, not merged yet.
std::vector<LaunchKind> kinds_of(const std::vector<SizedGraph>& cases);
// Per tensor: a buffer that some rank touches on another one, at some size.
std::vector<bool> buffers_met(const std::vector<SizedGraph>& cases);
// LaunchKind::merged of cases that synchronise alike, for these tensors.
InstanceGraph merge(const std::vector<SizedGraph>& cases, const std::vector<bool>& tensors);

}  // namespace stretto
