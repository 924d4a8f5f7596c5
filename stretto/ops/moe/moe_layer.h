// out = reduce_scatter(weighted sums over each token's experts of f(x * b_gate^T, x * b_up^T) *
// b^T), x the all-gathered tokens, f as gated_unit.h has it: a mixture of experts in one launch,
// every rank holding a part of every expert. What ag_grouped_gemm.h and grouped_gemm_rs.h do one
// after the other is done by the same SMs; the second layer begins when all of the first is there,
// and its sums may come after all its products.
#pragma once

#include <string>

#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

struct MoeLayerDesc {
  ExpertShape shape;
  std::int64_t hidden = 1, ffn = 1;  // ffn: of this rank
  DType dtype = DType::kF32;
  bool residual = false;
  int bias_ranks = 0;  // where all three products have biases: those of GroupedRsDesc
  GatedUnit gate;      // what the first two products become
  friend bool operator==(const MoeLayerDesc&, const MoeLayerDesc&) = default;
};

// Both layers have the same tile.bm, num_compute_sms and num_stages, and no SMs that sum alone.
struct MoeLayerConfig {
  AgGroupedConfig first;
  GroupedRsConfig second;
  friend bool operator==(const MoeLayerConfig&, const MoeLayerConfig&) = default;
};
NamedFields fields_of(MoeLayerConfig& config);

AgGroupedDesc first_layer(const MoeLayerDesc& desc);
GroupedRsDesc second_layer(const MoeLayerDesc& desc);
ExpertTiles tiles_of(const MoeLayerDesc& desc, const MoeLayerConfig& config);
NamedFields fields_of(MoeLayerDesc& desc);
std::string to_string(const MoeLayerDesc& desc);
MoeLayerConfig default_config(const MoeLayerDesc& desc, Target target = Target::kCpu);

// Extent m; S, T and R as in ag_grouped_gemm.h, whose state `a` [P * S, hidden], tables and weights
// b_gate, b_up [num_experts, ffn, hidden] it has, beside the table slots, weights, residual and
// output of grouped_gemm_rs.h, with biases bias_gate, bias_up and bias of both; whose b
// [num_experts, hidden, ffn] is the second layer's. What lies between the layers is rounded to the
// dtype. UserError as those of the two.
Program moe_layer(const MoeLayerDesc& desc, const MoeLayerConfig& config);

// m: tokens of all ranks with two of 5 experts each, n: columns of the first layer on a rank, k:
// hidden size.
OperatorInfo moe_layer_info();

}  // namespace stretto
