// out = weighted sums over each token's experts of f(x * b_gate^T, x * b_up^T) * b^T, f as
// gated_unit.h has it: a mixture of experts in one launch, from what route.h says of the own
// tokens. Groups of ranks have experts of their own. Ranks tell each other whom their tokens go to,
// and while each makes its tables of that (table_maker.h) the tokens travel, once to every rank
// that has an expert of theirs; both products, of the own tokens first, and the sums that go back
// are those of fused_layers.h. What moe_layer.h does with tables that it is given, for experts that
// every rank has a part of.
#pragma once

#include <string>

#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_split.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

struct EpMoeLayerDesc {
  ExpertShape shape;
  int expert_groups = 1;             // expert_split.h
  std::int64_t hidden = 1, ffn = 1;  // ffn: of this rank's part of an expert
  DType dtype = DType::kF32;
  bool residual = false;
  bool biases = false;  // in all three products
  GatedUnit gate;       // what the first two become

  ExpertSplit split() const { return {shape.num_experts, shape.world_size, expert_groups}; }
  friend bool operator==(const EpMoeLayerDesc&, const EpMoeLayerDesc&) = default;
};

// Both layers have the same tile.bm, num_compute_sms and num_stages. Those who multiply exchange
// tokens and make the tables before, and all sums after (sum_at_end).
struct EpMoeLayerConfig {
  AgGroupedConfig first;
  GroupedRsConfig second;
  ExpertTablesConfig tables;     // num_workers: of no account
  ExpertTileOrder order;         // in which tiles of rows come
  std::int64_t tell_tokens = 1;  // whose experts travel together
  friend bool operator==(const EpMoeLayerConfig&, const EpMoeLayerConfig&) = default;
};
NamedFields fields_of(EpMoeLayerConfig& config);

// A rank's part of a layer, as if all ranks had one of each of its experts.
MoeLayerDesc own_part(const EpMoeLayerDesc& desc);
ExpertTiles tiles_of(const EpMoeLayerDesc& desc, const EpMoeLayerConfig& config);
NamedFields fields_of(EpMoeLayerDesc& desc);
std::string to_string(const EpMoeLayerDesc& desc);
EpMoeLayerConfig default_config(const EpMoeLayerDesc& desc, Target target = Target::kCpu);

// With layers as they are in a config of own_part() that sums at the end.
EpMoeLayerConfig with_exchange(const EpMoeLayerDesc& desc, const MoeLayerConfig& layers,
                               Target target);

// What launches that do the same one after the other do: tokens travel and come back (ep_send.h and
// ep_return.h), ep_place.h finds the rows of the own experts.
struct EpMoeSteps {
  EpDesc exchange;
  GroupedDesc first, second;
};
EpMoeSteps steps_of(const EpMoeLayerDesc& desc);

// Extent m; S = ceil(m / P), R the rows of tiles_of, E = ceil(num_experts / groups). Symmetric
// state a [P * S, hidden]: rows 0..S-1 hold the own tokens; in those from i * S on a launch puts
// the tokens of rank (rank + i) % P that have an expert here, others it leaves alone. For the own
// tokens table experts [S * top_k, 1] i32 in 0..num_experts-1, those of a token one after the
// other, all different; weights [S, top_k] f32; residual [S, hidden]. For own experts b_gate and
// b_up [E, ffn, hidden], b [E, hidden, ffn], with biases bias_gate and bias_up [E, ffn] and bias
// [E, hidden], which the first rank of a group adds. State products [R, hidden]: scratch, what it
// holds before and after does not matter. Output out [S, hidden]. Rounded as in moe_layer.h.
// UserError naming the field of a bad desc or config; at a launch, the table and entry that break
// their contract.
Program ep_moe_layer(const EpMoeLayerDesc& desc, const EpMoeLayerConfig& config);

// m: tokens of all ranks with two of 5 experts each, n: columns of the first layer on a rank, k:
// hidden size.
OperatorInfo ep_moe_layer_info();

}  // namespace stretto
