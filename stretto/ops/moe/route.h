// Where the tokens of a mixture of experts go: the top-k of their scores, softmax or sigmoid,
// within limits of groups and with a bias where asked, and the tables by which grouped products
// (grouped_gemm.h) and the weighted sum of their results (combine.h) find their rows. Rows of a
// token and one of its experts are sorted by expert, within an expert by token: counted, so the
// order is the same at every launch. Every rank computes all of it for all tokens.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/placing.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

enum class Scoring : std::uint8_t { kSoftmax, kSigmoid };
const char* name(Scoring scoring);  // "softmax"

// What decides which groups of experts a token may go to.
enum class GroupScore : std::uint8_t {
  kBestTwo,  // the sum of the two best scores in it (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)
  kBest,     // the best one (DeepSeek-V2, arXiv 2405.04434, section 2.2.2)
};
const char* name(GroupScore score);  // "best_two"

// Names from scoring_func on are those of config.json.
struct RouteDesc {
  ExpertShape shape;
  std::int64_t hidden = 1;
  DType dtype = DType::kF32;         // x's
  DType weight_dtype = DType::kF32;  // the gate's
  bool tables = true;                // false: only weights and experts
  Scoring scoring_func = Scoring::kSoftmax;
  bool bias = false;  // added to scores to choose by, not to weights (e_score_correction_bias)
  std::int64_t n_group = 1;     // groups of consecutive experts, equally many
  std::int64_t topk_group = 1;  // a token's experts are in this many of them
  GroupScore group_score = GroupScore::kBestTwo;
  bool norm_topk_prob = true;        // the weights of a token's experts are divided by their sum
  double routed_scaling_factor = 1;  // what weights are multiplied by in the end
  friend bool operator==(const RouteDesc&, const RouteDesc&) = default;
};

struct RouteConfig {
  std::int64_t score_rows = 16;    // tokens that are scored at a time
  std::int64_t score_experts = 0;  // by so many experts; 0: all
  std::int64_t tile_k = 0;         // hidden columns of one step; 0: all
  int num_stages = 0;              // steps loaded ahead; 0: none
  int num_score_workers = 1;
  // Tokens whose experts are chosen at a time; divides score_rows and a part's tokens.
  std::int64_t tile_rows = 16;
  PlacingTiles placing;
  // Groups of parts: of one it is counted while the next is scored.
  int num_groups = 1;
  int num_workers = 1;  // that choose, and then place
  friend bool operator==(const RouteConfig&, const RouteConfig&) = default;
};
NamedFields fields_of(RouteConfig& config);

NamedFields fields_of(RouteDesc& desc);
RouteConfig default_config(const RouteDesc& desc, Target target = Target::kCpu);

// Extent m; R = m * top_k. Inputs x [m, hidden], gate [num_experts, hidden], and where asked bias
// [1, num_experts] f32. Outputs
//   weights [m, top_k] f32   each token's experts', the one with the best score (and bias) first
//   slots [m, top_k] i32   its rows in the sorted order: a permutation of 0..R-1
//   offsets [num_experts + 1] i32   the first row of each expert, then R: a partition
//   tokens [R, 1] i32   the token of each row
// or, without tables, weights and experts [m, top_k] i32, for other ranks to place (ep_send.h).
// Among equal scores the lower expert comes first, and so does the lower group. Tokens whose scores
// are no numbers are routed all the same, with weights that are none. UserError naming the field of
// a bad desc or config.
Program moe_route(const RouteDesc& desc, const RouteConfig& config);

// m: tokens, n: experts, k: hidden size.
OperatorInfo moe_route_info();
// As in DeepSeek-V3: sigmoid, a bias, half of 4 groups (large: of 8), weights times 2.5.
OperatorInfo moe_route_limited_info();

}  // namespace stretto
