// out = all_reduce(weighted sums over each token's experts of a * b[expert]^T), or reduce_scatter:
// what grouped_gemm_rs.h computes, from the tables that routing makes (route.h), so that the step
// of a model has it behind routing and the first products without a word of the host. Stands for
// grouped_gemm.h and combine.h, of which it has the products and the sums.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct SortedRsDesc {
  // Contiguous, neither gathered nor with a gate, spare rows or biases; n: hidden size.
  GroupedDesc products;
  bool residual = false;
  bool all_reduce = false;  // every rank gets the sums of all tokens

  ExpertShape shape() const {
    return {products.world_size, products.m, products.rows_per_token, products.num_experts};
  }
  friend bool operator==(const SortedRsDesc&, const SortedRsDesc&) = default;
};
NamedFields fields_of(SortedRsDesc& desc);

struct SortedRsConfig {
  GroupedRsConfig sums;  // and the loop of the products, without raster and num_products
  // As in GroupedConfig. Columns are dealt out beforehand: tiles that go by ticket may not wait.
  std::int64_t row_parts = 1;
  bool swap_ab = false;

  friend bool operator==(const SortedRsConfig&, const SortedRsConfig&) = default;
};
NamedFields fields_of(SortedRsConfig& config);

// The products' default config, with the weights as the left factor where asked (can_swap(), on
// GPUs), and all sums behind all products, by those who multiply.
SortedRsConfig default_config(const SortedRsDesc& desc, Target target = Target::kCpu,
                              bool swap_ab = false);

// Extent m; S = ceil(m / P), R = m * rows_per_token. Inputs offsets [num_experts + 1] i32, a
// partition of R; slots [m, rows_per_token] i32 in 0..R-1 and weights of that shape, f32, both the
// same on every rank; a [R, k] and b [share, n, k], with scales as in grouped_gemm.h; residual
// [S, n], of the own tokens. Outputs products [R, n], with several expert groups a state of which
// rows of other ranks' experts stay as they are, and out [S, n]; with all_reduce residual and
// symmetric out are [m, n]. A product is rounded to c_dtype, a rank's weighted sum is fp32, rounded
// once where there are several ranks; these are added in the order of ranks, in fp32, then the
// residual, and rounded: the bits are those of grouped_gemm and moe_combine. UserError naming the
// field of a bad desc or config; at a launch, the table and entry that break their contract.
// Programs: sorted_gemm_rs, sorted_gemm_ar.
Program sorted_gemm_rs(const SortedRsDesc& desc, const SortedRsConfig& config);

// m: tokens with two of 5 experts each, n: hidden size, k: the summed dimension.
OperatorInfo sorted_gemm_rs_info();
OperatorInfo sorted_gemm_ar_info();

}  // namespace stretto
