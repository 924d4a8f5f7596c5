// What the comparison of a mixture of experts' fused layers runs: layers of three models with every
// expert split over the ranks, and for each the configs among which the fastest is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/experts/routings.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"

namespace stretto::bench {

struct MoeShape {
  const char* model = "";
  std::int64_t hidden = 0, ffn = 0;  // ffn: of an expert, all ranks
  std::int64_t num_experts = 0, top_k = 0;
  std::int64_t m = 0;  // tokens of all ranks
  int world_size = 1;
  int layer = 1;  // 1, 2; 0: both in one launch
  bool all_reduce = false;  // the second's sums, of all tokens, go to every rank
  std::optional<Routing> routing = {};  // none: any expert as likely as any other

  double flops() const;           // of one rank
  std::string to_string() const;  // "moe-1 mixtral-8x7b P=2 m=4096"
};

AgGroupedDesc first_layer(const MoeShape& shape);
GroupedRsDesc second_layer(const MoeShape& shape);
MoeLayerDesc whole_layer(const MoeShape& shape);

// Mixtral 8x7B, Qwen2-MoE and Phi-3.5-MoE with 2048 to 16384 tokens, each layer, and with 2048 and
// 8192 the second with an all-reduce; two sizes of 32 and 128 experts with 4096 to 16384, and 16
// and 64, both layers in one launch. `quick`: one number of tokens.
std::vector<MoeShape> moe_shapes(int world_size, bool quick);

// Both layers, one after the other, of kNumRoutings routings that the seed draws: every listed pair
// of a model and a number of tokens once before one comes again. `quick`: one number of tokens.
inline constexpr int kNumRoutings = 16;
std::vector<MoeShape> routed_shapes(int world_size, std::uint64_t seed, bool quick);

// [m, top_k] by the shape's routing.
std::vector<std::int32_t> chosen_experts(const MoeShape& shape, std::uint64_t seed);

// [m, top_k]: every token has top_k different experts, any as likely as any other.
std::vector<std::int32_t> random_experts(const MoeShape& shape, std::uint64_t seed);

// All configs in the default order of tiles, then some of them in others.
struct FirstLayerCandidate {
  AgGroupedConfig config;
  ExpertTileOrder order;           // of the tables
  bool new_products = true;  // alone, in the sequence: no candidate before has the same
};
std::vector<FirstLayerCandidate> first_layer_candidates(const MoeShape& shape, int num_sms);
struct SecondLayerCandidate {
  GroupedRsConfig config;
  bool new_products = true;
};
std::vector<SecondLayerCandidate> second_layer_candidates(const MoeShape& shape, int num_sms);
struct WholeLayerCandidate {
  MoeLayerConfig config;
  ExpertTileOrder order;
  bool new_products = true;
  GroupedRsConfig alone = {};  // of the second layer's products in the sequence
};
std::vector<WholeLayerCandidate> whole_layer_candidates(const MoeShape& shape, int num_sms);
std::string products_of(const WholeLayerCandidate& candidate);  // alone
template <typename Candidate>
std::string in_order(const Candidate& c) {
  return to_string(c.config) + " " + to_string(c.order);
}

// The unfused path beside our product of a layer: products of rows in tiles (TMA loads them), and
// the weighted sum of every token's, which leaves a part of [m, hidden] for the reduce-scatter.
Program tile_products(const GroupedRsDesc& desc, const GroupedRsConfig& config);
Program weighted_sums(const GroupedRsDesc& desc, const GroupedRsConfig& config);

}  // namespace stretto::bench
