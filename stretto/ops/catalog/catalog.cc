#include "stretto/ops/catalog/catalog.h"

#include "stretto/ops/ag_gemm/ag_columns_shapes.h"
#include "stretto/ops/ag_gemm/ag_gemm_shapes.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/collectives/uneven.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/gemm/quantize_fp8.h"
#include "stretto/ops/gemm_ag/gemm_ag_shapes.h"
#include "stretto/ops/gemm_ar/gemm_ar_shapes.h"
#include "stretto/ops/gemm_rs/gemm_rs_shapes.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"
#include "stretto/ops/moe/sorted_gemm_rs.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

const std::vector<OperatorInfo>& catalog() {
  static const std::vector<OperatorInfo> operators = {
      all_gather_info(),
      reduce_scatter_info(),
      all_reduce_info(AllReduceKind::kOneShot),
      all_reduce_info(AllReduceKind::kTwoShot),
      all_reduce_info(AllReduceKind::kPacket),
      all_reduce_info(AllReduceKind::kRing),
      reduce_scatter_info(Reduction::kProduct),
      all_reduce_info(AllReduceKind::kTwoShot, Reduction::kMax),
      reduce_scatter_info(Reduction::kPremulSum),
      all_reduce_info(AllReduceKind::kOneShot, Reduction::kPremulSum),
      all_to_all_info(),
      all_to_all_v_info(),
      all_gather_v_info(),
      all_gather_int8_info(),
      reduce_scatter_int8_info(),
      all_reduce_int8_info(),
      all_to_all_int8_info(),
      broadcast_info(),
      reduce_info(),
      gather_info(),
      scatter_info(),
      send_info(),
      gemm_info(),
      gemm_swiglu_info(),
      gemm_fp8_info(),
      gemm_fp8_block_info(),
      gemm_split_k_info(),
      quantize_fp8_info(),
      ag_gemm_info(),
      ag_gemm_push_info(),
      ag_gemm_fp8_info(),
      ag_gemm_fp8_block_info(),
      ag_gemm_gathered_info(),
      ag_columns_gemm_info(),
      ag_columns_gemm_fp8_info(),
      ag_columns_gemm_fp8_block_info(),
      gemm_ag_info(),
      gemm_ag_fp8_info(),
      gemm_rs_info(),
      gemm_rs_copy_info(),
      gemm_rs_fp8_info(),
      gemm_rs_fp8_rows_info(),
      gemm_ar_info(),
      gemm_ar_two_shot_info(),
      gemm_ar_shared_info(),
      gemm_ar_fp8_info(),
      gemm_ar_fp8_block_info(),
      rms_norm_info(),
      all_reduce_add_rms_norm_info(),
      reduce_scatter_add_rms_norm_info(),
      rms_norm_columns_info(),
      swiglu_info(),
      add_row_info(),
      rope_info(),
      attention_info(),
      decode_attention_info(),
      packed_attention_info(),
      paged_attention_info(),
      paged_attention_fp8_info(),
      paged_decode_info(),
      paged_decode_fp8_info(),
      paged_write_info(),
      paged_write_fp8_info(),
      sequence_attention_info(),
      ring_attention_info(),
      token_ring_info(),
      flash_decode_info(),
      gemm_a2a_info(),
      a2a_gemm_info(),
      embedding_info(),
      lm_head_info(),
      moe_route_info(),
      moe_route_limited_info(),
      grouped_gemm_info(),
      grouped_swiglu_info(),
      grouped_gemm_masked_info(),
      moe_combine_info(),
      expert_tables_info(),
      ag_grouped_gemm_info(),
      grouped_gemm_rs_info(),
      grouped_gemm_ar_info(),
      sorted_gemm_rs_info(),
      sorted_gemm_ar_info(),
      moe_layer_info(),
      ep_moe_layer_info(),
      ep_send_info(),
      ep_send_fp8_info(),
      ep_place_info(),
      ep_return_info(),
  };
  return operators;
}

const OperatorInfo* find_operator(const std::string& name) {
  for (const OperatorInfo& op : catalog()) {
    if (name == op.name) return &op;
  }
  return nullptr;
}

}  // namespace stretto
