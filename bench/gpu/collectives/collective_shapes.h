// Which messages the comparison of collectives sends, and the programs of ours that compete for
// each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/norm/norm.h"

namespace stretto::bench {

enum class CollectiveKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kAllReduceNorm,  // all-reduce, residual and RMSNorm in one kernel
};

// A message of [m, n] in bf16 over all ranks: of an all-gather the result, of all others each
// rank's operand.
struct CollectiveShape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  AllReduceKind all_reduce = AllReduceKind::kTwoShot;  // of kAllReduce
  std::size_t bytes = 0;
  CollectiveDesc desc;

  std::string to_string() const;  // "all_reduce packet 16 KB"
  // What a ring sends through each GPU's link, the usual measure of a collective's rate.
  double bus_bytes() const;
};

// 4 KB to 256 MB. `quick`: three sizes.
std::vector<CollectiveShape> collective_shapes(int world_size, bool quick);

// Of kAllReduceNorm.
NormDesc norm_desc(const CollectiveShape& shape);

struct CollectiveCandidate {
  std::string config;
  Program program;
};
std::vector<CollectiveCandidate> collective_candidates(const CollectiveShape& shape, bool quick);

}  // namespace stretto::bench
