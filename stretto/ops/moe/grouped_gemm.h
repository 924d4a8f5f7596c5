// c = f(a * b[expert of the row]^T): one product per expert, over the rows that a table deals out
// to it, or over the first ones of a block of its own. How many rows an expert has, none or all of
// them, is known at the launch only. Every rank by itself, with its part of every expert's weights,
// or with the experts of its group.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/expert_split.h"
#include "stretto/ops/moe/gated_unit.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

enum class RowLayout : std::uint8_t {
  kContiguous,  // the rows of an expert follow those of the one before
  kMasked,      // each expert has m rows, of which a table says how many are used
};
const char* name(RowLayout layout);  // "contiguous"

struct GroupedDesc {
  int world_size = 1;
  std::int64_t m = 1;  // most tokens (or rows of an expert); a launch has 0 <= m <= this
  std::int64_t rows_per_token = 1;  // experts of a token: R = m * rows_per_token rows
  std::int64_t num_experts = 1;
  int expert_groups = 1;    // expert_split.h
  bool spare_rows = false;  // the table's last part belongs to no expert
  std::int64_t n = 1, k = 1;
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool gathered = false;  // rows of a are those of tokens, chosen by a table
  bool swiglu = false;    // f(a * b_gate^T, a * b_up^T)
  GatedUnit gate;         // that f
  bool bias = false;      // + bias[expert of the row], of each product
  RowLayout layout = RowLayout::kContiguous;
  Scaling scaling = Scaling::kNone;  // kBlock: of e4m3 factors

  bool masked() const { return layout == RowLayout::kMasked; }
  std::int64_t num_rows() const { return m * rows_per_token; }
  friend bool operator==(const GroupedDesc&, const GroupedDesc&) = default;
};

ExpertSplit split_of(const GroupedDesc& desc);

struct GroupedConfig {
  MainLoop loop;               // raster: 1, columns of experts follow one another
  std::int64_t row_parts = 1;  // workers that share an expert's column, by tiles of rows in turn
  bool tickets = false;        // columns of experts go to whoever is free: experts have unlike rows
  // The weights are the left factor of the tensor core, which takes 64 of their rows at a time and
  // any multiple of 8 rows of an expert's: for experts of few rows, which would leave a tile of 64
  // or 128 half empty. Without bias and scaling.
  bool swap_ab = false;
  friend bool operator==(const GroupedConfig&, const GroupedConfig&) = default;
};
NamedFields fields_of(GroupedConfig& config);

NamedFields fields_of(GroupedDesc& desc);
// docs/performance/moe.md, 'Why the defaults are what they are', has what was measured.
GroupedConfig default_config(const GroupedDesc& desc, Target target = Target::kCpu);
// With swap_ab, for GPUs: tiles of as many rows as experts are likely to have. A row has the same
// bits at every m, whatever tile it is in. UserError where can_swap() is false.
GroupedConfig swapped_config(const GroupedDesc& desc, Target target);
bool can_swap(const GroupedDesc& desc);  // 16-bit factors without bias
// Rows that an expert has if all tokens are there and go to all experts alike, rounded up.
std::int64_t mean_rows(const GroupedDesc& desc);

// Extent m. Inputs offsets [num_experts + 1] i32, a partition of the R rows; a [R, k], or gathered
// a [m, k] with tokens [R, 1] i32 in 0..m-1 (route.h gives both tables); b [num_experts, n, k]
// (swiglu: b_gate and b_up). Output c [R, n]. With several expert groups b has the weights of the
// own group's experts only, [ceil(num_experts / groups), n, k], and c is state: rows of other
// experts stay as they are. With
// spare rows offsets has one entry more, and rows of the last part stay likewise. With block scales
// also scale_a, of a row for every row of a, [.., ceil(k/128)], and scale_b [.., ceil(n/128),
// ceil(k/128)] (swiglu: scale_b_gate and scale_b_up), of the experts of b; f32. With
// bias also bias (swiglu: bias_gate and bias_up), of the experts of b, [.., n], of c_dtype.
// Masked, with E experts here: counts [E] i32 in 0..m in place of offsets; a [E * m, k], not
// gathered; c [E * m, n] is state, of which row e * m + i is written where i < counts[e].
// Accumulated in fp32, rounded once. UserError naming the field of a bad desc or config; at a
// launch, the table and entry that break their contract.
Program grouped_gemm(const GroupedDesc& desc, const GroupedConfig& config);

// m: tokens with two rows each, n: columns of c, k: the summed dimension; 5 experts (large: 32).
// With fp8 factors c is bfloat16.
OperatorInfo grouped_gemm_info();
OperatorInfo grouped_swiglu_info();       // gathered
OperatorInfo grouped_gemm_masked_info();  // m: most rows of an expert

}  // namespace stretto
