// Rows of the catalog: what ag_gemm makes of a shape that is asked for.
// m: rows of all ranks, n: columns of c over all ranks, k: the summed dimension.
#pragma once

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm/gemm_shapes.h"

namespace stretto {

using AgGemmOperator = ProductOperator<AgGemmDesc, AgGemmConfig>;
AgGemmOperator ag_gemm_operator();
AgGemmOperator ag_gemm_push_operator();
AgGemmOperator ag_gemm_fp8_operator();
AgGemmOperator ag_gemm_fp8_block_operator();
AgGemmOperator ag_gemm_gathered_operator();

OperatorInfo ag_gemm_info();
OperatorInfo ag_gemm_push_info();
OperatorInfo ag_gemm_fp8_info();
OperatorInfo ag_gemm_fp8_block_info();
OperatorInfo ag_gemm_gathered_info();

}  // namespace stretto
