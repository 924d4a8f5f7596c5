// What the catalog makes of a shape of the fused layers of a mixture of experts: 5 experts of which
// each token takes 2; sizes that are left open are those of a test.
#pragma once

#include "stretto/ops/harness/op_case.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_case.h"
#include "stretto/ops/moe/moe_layer.h"

namespace stretto {

AgGroupedDesc ag_grouped_gemm_desc(const OpShape& shape);
GroupedRsDesc grouped_gemm_rs_desc(const OpShape& shape, bool all_reduce);
MoeLayerDesc moe_layer_desc(const OpShape& shape);
EpMoeLayerDesc ep_moe_layer_desc(const OpShape& shape);  // 32 experts from 1001 tokens on

// Every rank its `count` elements of the sums, and the residual where there is one.
void expect_sums(MoeCase& mc, const Values& sums, std::size_t count, bool residual);

// A token on a rank with (a part of) one of its experts.
struct RowOfLayer {
  std::size_t rank, token, share;  // share: tokens of a rank
  std::size_t expert;              // of the rank's b_gate, b_up and b
};
// What both layers make of tokens, which lie in their own ranks' `a`, and of each token how large
// the terms of its sum are.
class BothLayers {
 public:
  explicit BothLayers(MoeCase& mc) : mc_(mc) {}
  Values of(const RowOfLayer& row) const;  // [k]
  // How far such a row may be off, as OpCase::scales has it.
  static double scale(const Values& result);
  // weight * result of `token` is one term of its sum.
  void add(const Values& result, double weight, std::size_t token);
  // The sums [tokens of all ranks, k] as `out` of the tokens' ranks, of `share` each, and how far
  // each may be off: a token that two large factors meet in has terms of many times the mean.
  void expect(std::size_t share, bool residual);

 private:
  MoeCase& mc_;
  std::vector<Values> sums_;  // [token][k]
  Values squares_;            // [token], of its terms' scales
};

}  // namespace stretto
