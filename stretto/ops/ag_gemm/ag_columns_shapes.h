// Rows of the catalog: what ag_columns_gemm makes of a shape that is asked for.
// m: rows, n: columns of c over all ranks, k: the summed dimension of all ranks.
#pragma once

#include "stretto/ops/ag_gemm/ag_columns_gemm.h"
#include "stretto/ops/gemm/gemm_shapes.h"

namespace stretto {

// k is rounded up to what the ranks share alike.
AgColumnsDesc ag_columns_desc(const OpShape& shape, Scaling scaling = Scaling::kNone);

using AgColumnsOperator = ProductOperator<AgColumnsDesc, AgColumnsConfig>;
AgColumnsOperator ag_columns_gemm_operator();
AgColumnsOperator ag_columns_gemm_fp8_operator();
AgColumnsOperator ag_columns_gemm_fp8_block_operator();

OperatorInfo ag_columns_gemm_info();
OperatorInfo ag_columns_gemm_fp8_info();
OperatorInfo ag_columns_gemm_fp8_block_info();

}  // namespace stretto
