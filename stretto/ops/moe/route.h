// Where the tokens of a mixture of experts go: the top-k of a softmax over the experts, and the
// tables by which grouped products (grouped_gemm.h) and the weighted sum of their results
// (combine.h) find their rows. Rows of a token and one of its experts are sorted by expert, within
// an expert by token: counted, so the order is the same at every launch. Every rank computes all of
// it for all tokens.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/harness/op_case.h"

namespace stretto {

struct RouteDesc {
  DType dtype = DType::kF32;         // of x
  DType weight_dtype = DType::kF32;  // of gate
  std::int64_t m = 1;                // most tokens; each launch has 0 <= m <= this
  std::int64_t hidden = 1;
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;  // experts of a token
  bool normalize = true;   // the weights of a token's experts are divided by their sum
  bool tables = true;      // false: only weights and experts
  int world_size = 1;
};

struct RouteConfig {
  std::int64_t tile_rows = 16;   // tokens whose experts are chosen at a time
  std::int64_t tile_k = 0;       // hidden columns of one step; 0: all
  std::int64_t count_rows = 64;  // tokens counted at a time
  std::int64_t tile_slots = 64;  // rows of the sorted order whose token is looked up at a time
  int num_workers = 1;           // of choosing and of looking up
};

std::string to_string(const RouteDesc& desc);
RouteConfig default_config(const RouteDesc& desc, Target target = Target::kCpu);

// Extent m; R = m * top_k. Inputs x [m, hidden], gate [num_experts, hidden]. Outputs
//   weights [m, top_k] f32   of each token's experts, the most probable first
//   slots [m, top_k] i32     the row that the token has in the sorted order: a permutation of
//   0..R-1 offsets [num_experts + 1] i32   the first row of each expert, then R: a partition tokens
//   [R, 1] i32        the token of each row
// or, without tables, weights and experts [m, top_k] i32, for other ranks to place (ep_dispatch.h).
// Of equal probabilities the lower expert comes first. Tokens whose probabilities are no numbers
// are routed all the same, with weights that are none. UserError naming the field of a bad desc or
// config.
Program moe_route(const RouteDesc& desc, const RouteConfig& config);

// m: tokens, n: experts, k: hidden size.
OperatorInfo moe_route_info();

}  // namespace stretto
