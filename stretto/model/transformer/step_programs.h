// The operators of a forward step, each with the config that its target runs best.
#pragma once

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/paged_write.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm/quantize_fp8.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/route.h"
#include "stretto/ops/moe/sorted_gemm_rs.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

Program step_program(const GemmDesc& desc, Target target);
Program step_program(const GemmArDesc& desc, Target target);
Program step_program(const GemmRsDesc& desc, Target target);
Program step_program(const AgGemmDesc& desc, Target target);
Program step_program(const QuantizeDesc& desc, Target target);
Program step_program(const NormDesc& desc, Target target);        // rms_norm
Program step_program(const CollectiveDesc& desc, Target target);  // all_gather
Program step_program(const RouteDesc& desc, Target target);
Program step_program(const GroupedDesc& desc, Target target);
Program swapped_program(const GroupedDesc& desc, Target target);
Program step_program(const CombineDesc& desc, Target target);
Program fused_program(const SortedRsDesc& desc, Target target, bool swap_ab);
Program gemm_a2a_program(const UlyssesDesc& desc, Target target);
Program a2a_gemm_program(const UlyssesDesc& desc, Target target);
Program send_program(const EpDesc& desc, Target target);
Program place_program(const EpDesc& desc, Target target);
Program return_program(const EpDesc& desc, Target target);
Program add_row_program(const NormDesc& desc, Target target);
Program rope_program(const AttentionDesc& desc, Target target);
Program paged_attention_program(const PackedAttentionDesc& desc, Target target,
                                std::int64_t first_run);
Program paged_decode_program(const PagedDecodeDesc& desc, Target target);
Program embedding_program(const VocabDesc& desc, Target target);
Program lm_head_program(const VocabDesc& desc, Target target);

}  // namespace stretto
