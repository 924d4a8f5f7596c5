// Rows of the own experts: the tables by which grouped products (grouped_gemm.h, with spare rows)
// find the tokens that ep_send.h brought, and ep_return.h their results. Ranks do not communicate.
#pragma once

#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/moe/placing.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct PlaceConfig {
  PlacingTiles tiles;
  int num_workers = 1;
  friend bool operator==(const PlaceConfig&, const PlaceConfig&) = default;
};
NamedFields fields_of(PlaceConfig& config);

PlaceConfig default_place_config(const EpDesc& desc, Target target = Target::kCpu);

// Input recv_experts [P * S, top_k] i32 in -1..num_experts-1, a token's experts all different. With
// E = ceil(num_experts / groups) own experts and R = P * S * top_k rows, outputs
//   slots [P * S, top_k] i32   the row of a token and one of its experts, or -1: elsewhere
//   offsets [E + 2] i32        the first row of each own expert, the end of the last, R
//   tokens [R, 1] i32          the token of each row, 0 where a row has none
// Rows are sorted by expert, within an expert by token. UserError naming the field of a bad desc or
// config; at a launch, the table and entry that break their contract.
Program ep_place(const EpDesc& desc, const PlaceConfig& config);

// m: tokens of all ranks with three of 5 experts each.
OperatorInfo ep_place_info();

}  // namespace stretto
