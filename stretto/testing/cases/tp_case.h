// What the cases of the layers of a mixture of experts have in common.
#pragma once

#include <algorithm>

#include "stretto/ops/moe/moe_layer.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {

// What the first layer's two products become, as GPT-OSS writes it: a clamped gate with its own
// sigmoid, times a clamped factor to which beta is added.
double gate_and_factor(const GatedUnit& unit, double gate, double factor);

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
  // Of a desc as it is on every rank.
  BothLayers(MoeCase& mc, const MoeLayerDesc& d)
      : mc_(mc), bias_ranks_(static_cast<std::size_t>(std::max(d.bias_ranks, 1))), gate_(d.gate) {}
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
  std::size_t bias_ranks_;
  GatedUnit gate_;
  std::vector<Values> sums_;  // [token][k]
  Values squares_;            // [token], of its terms' scales
};

}  // namespace stretto
