// The accesses of one launch, sorted by the memory they touch: per tensor and rank, the distinct
// boxes and who reads or writes each.
#pragma once

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
  std::vector<AccessRef> reads, writes;  // reductions are writes
};

struct TensorUse {
  int tensor = -1, rank = -1;
  std::vector<BoxUse> uses;
  std::vector<Box> boxes;            // of `uses`
  std::vector<std::size_t> written;  // indices of `uses` with writes
  std::vector<Box> written_boxes;    // of `written`
  bool remote = false;               // some access comes from another rank
};

// What is stored, one by one; reductions add to what is there.
struct Writes {
  std::vector<Box> boxes;
  std::vector<AccessRef> refs;  // of each box
};
Writes writes_of(const TensorUse& use);

// One entry per tensor and rank, at tensor * world_size + rank.
std::vector<TensorUse> index_accesses(const InstanceGraph& graph);

}  // namespace stretto
