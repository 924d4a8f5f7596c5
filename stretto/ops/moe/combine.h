// The last step of a mixture of experts: each token's results, weighted and added up, over the
// ranks too, where each holds a part of every expert.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_split.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct CombineDesc {
  ExpertShape shape;  // num_experts is used with several groups only
  std::int64_t hidden = 1;
  DType dtype = DType::kF32;
  int expert_groups = 1;           // expert_split.h
  bool sequence_parallel = false;  // a rank keeps its ceil(m / P) tokens only
  friend bool operator==(const CombineDesc&, const CombineDesc&) = default;
};

ExpertSplit split_of(const CombineDesc& desc);

struct CombineConfig {
  std::int64_t tile_rows = 16;
  int num_workers = 1;  // in each role
  int threads = 0;      // in a worker's GPU block; 0: by the resource
  friend bool operator==(const CombineConfig&, const CombineConfig&) = default;
};
NamedFields fields_of(CombineConfig& config);

NamedFields fields_of(CombineDesc& desc);
CombineConfig default_config(const CombineDesc& desc, Target target = Target::kCpu);

// Extent m; R = m * top_k. Inputs y [R, hidden], each rank's own part of a sum over ranks; with
// several expert groups also offsets [num_experts + 1] i32, a partition of R (route.h): a rank
// reads the rows of its own experts only; slots
// [m, top_k] i32 in 0..R-1 and weights [m, top_k] f32, the same on every rank (route.h); residual,
// of the result's shape. Output out [m, hidden], or [ceil(m / P), hidden] when sequence-parallel:
// the sum of weights * y[slots], plus residual. A rank's weighted sum is fp32, rounded once to
// travel, summed in fp32 in rank order and rounded again. UserError naming the field of a bad desc
// or config.
Program moe_combine(const CombineDesc& desc, const CombineConfig& config);

// m: tokens with three experts each, n: hidden size; odd m: sequence-parallel.
OperatorInfo moe_combine_info();

}  // namespace stretto
