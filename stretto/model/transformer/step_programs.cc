#include "stretto/model/transformer/step_programs.h"

#include <algorithm>

namespace stretto {
namespace {

template <typename Desc>
auto config_for(const Desc& d, Target target) {
  return default_config(d, target);
}

// Tiles do not depend on the rows of a step, as threads add up a row in an order that depends on
// how many a tile has.
constexpr std::int64_t kAnyRows = 4096;

}  // namespace

Program step_program(const GemmDesc& d, Target target) { return gemm(d, config_for(d, target)); }

Program step_program(const GemmArDesc& d, Target target) {
  return gemm_ar(d, config_for(d, target));
}

Program step_program(const GemmRsDesc& d, Target target) {
  return gemm_rs(d, config_for(d, target));
}

Program step_program(const AgGemmDesc& d, Target target) {
  return ag_gemm(d, config_for(d, target));
}

Program step_program(const QuantizeDesc& d, Target target) {
  return quantize_fp8(d, config_for(d, target));
}

Program step_program(const NormDesc& d, Target target) {
  NormDesc many = d;
  many.m = std::max(d.m, kAnyRows);
  NormConfig c = config_for(d, target);
  if (target == Target::kCuda) c.tile_rows = config_for(many, target).tile_rows;
  return rms_norm(d, c);
}

Program step_program(const CollectiveDesc& d, Target target) {
  return all_gather(d, config_for(d, target));
}

Program step_program(const RouteDesc& d, Target target) {
  return moe_route(d, config_for(d, target));
}

Program step_program(const GroupedDesc& d, Target target) {
  return grouped_gemm(d, config_for(d, target));
}

Program swapped_program(const GroupedDesc& d, Target target) {
  return grouped_gemm(d, swapped_config(d, target));
}

Program step_program(const CombineDesc& d, Target target) {
  return moe_combine(d, config_for(d, target));
}

Program gemm_a2a_program(const UlyssesDesc& d, Target target) {
  return gemm_a2a(d, default_gemm_a2a_config(d, target));
}

Program a2a_gemm_program(const UlyssesDesc& d, Target target) {
  return a2a_gemm(d, default_a2a_gemm_config(d, target));
}

Program fused_program(const SortedRsDesc& d, Target target, bool swap_ab) {
  return sorted_gemm_rs(d, default_config(d, target, swap_ab));
}

Program send_program(const EpDesc& d, Target target) {
  return ep_send(d, default_send_config(d, target));
}

Program place_program(const EpDesc& d, Target target) {
  return ep_place(d, default_place_config(d, target));
}

Program return_program(const EpDesc& d, Target target) {
  return ep_return(d, default_return_config(d, target));
}

Program add_row_program(const NormDesc& d, Target target) {
  return add_row(d, config_for(d, target));
}

Program rope_program(const AttentionDesc& d, Target target) {
  return rope(
      d, target == Target::kCuda ? gpu_rope_config(d, target.gpu(), kAnyRows) : default_config(d));
}

// On CPU ranks one block, so that tiles which take turns cost nothing, and those of absent
// sequences little. A first_run takes the place of that of the config, where it has one.
Program paged_attention_program(const PackedAttentionDesc& d, Target target,
                                std::int64_t first_run) {
  PackedAttentionConfig c = default_config(d, target);
  if (target == Target::kCpu) c.blocks = 1;
  if (first_run > 0 && c.first_run > 0) c.first_run = first_run;
  return paged_attention(d, c);
}

Program paged_decode_program(const PagedDecodeDesc& d, Target target) {
  return paged_decode(d, default_config(d, target));
}

Program embedding_program(const VocabDesc& d, Target target) {
  return embedding(
      d, target == Target::kCuda ? embedding_gpu_config(d, target.gpu()) : default_config(d));
}

Program lm_head_program(const VocabDesc& d, Target target) {
  return lm_head(d,
                 target == Target::kCuda ? lm_head_gpu_config(d, target.gpu()) : default_config(d));
}

}  // namespace stretto
