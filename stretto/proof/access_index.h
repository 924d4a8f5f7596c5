// The accesses of one launch, sorted by the memory they touch: per tensor and rank, the distinct
// boxes and who reads or writes each.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "stretto/proof/instance_graph.h"

namespace stretto {

struct AccessRef {
  int agent = -1;
  int idx = -1;  // into AgentTrace::accesses
  const Access* access = nullptr;
};

struct BoxUse {
  Box box;
  int mask = -1;                         // what is left of it, where the graph has masks
  std::vector<AccessRef> reads, writes;  // reductions are writes
};

struct TensorUse {
  int tensor = -1, rank = -1;
  std::vector<BoxUse> uses;
  std::vector<std::size_t> written;  // indices of `uses` with writes
  bool remote = false;               // some access comes from another rank
};

// Of all its uses, in order.
std::vector<Box> boxes_of(const TensorUse& use);

// What is stored, one by one; reductions add to what is there.
struct Writes {
  std::vector<Box> boxes;
  std::vector<AccessRef> refs;  // of each box
  std::vector<int> masks;       // of each, where there are any
};
Writes writes_of(const TensorUse& use);

// Calls fn(i, j) for what overlaps of two of these, at any of the sizes that the graph is for.
using OnOverlap = std::function<void(std::size_t, std::size_t)>;
void for_each_overlap(const InstanceGraph& graph, const Writes& writes, const OnOverlap& fn);
// Of writing uses, which of `written`, and any.
void for_each_overlap(const InstanceGraph& graph, const TensorUse& use, const OnOverlap& fn);

// The boxes of some of its uses.
Writes uses_at(const TensorUse& use, const std::vector<std::size_t>& idx);
// Whether boxes cover a use's, at all sizes that the graph is for. What they leave of a box; all of
// it where that is not known.
bool is_covered(const InstanceGraph& graph, const BoxUse& use, const Writes& by);
Box hole_in(const Box& box, const Writes& by);
// Whether writes that do not overlap leave nothing of the tensor.
bool is_filled(const InstanceGraph& graph, int tensor, const Writes& by);

// One entry per tensor and rank, at tensor * world_size + rank.
std::vector<TensorUse> index_accesses(const InstanceGraph& graph);

}  // namespace stretto
