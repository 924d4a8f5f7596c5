// What the catalog makes of a shape of the fused layers of a mixture of experts: 5 experts of which
// each token takes 2; sizes that are left open are those of a test.
#pragma once

#include "stretto/ops/harness/op_case.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"

namespace stretto {

AgGroupedDesc ag_grouped_gemm_desc(const OpShape& shape);
GroupedRsDesc grouped_gemm_rs_desc(const OpShape& shape, bool all_reduce);
MoeLayerDesc moe_layer_desc(const OpShape& shape);

}  // namespace stretto
