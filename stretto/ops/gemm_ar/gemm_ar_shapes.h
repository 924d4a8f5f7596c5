// Rows of the catalog: what gemm_ar makes of a shape that is asked for.
// m: rows, n: columns, k: the summed dimension over all ranks.
#pragma once

#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"

namespace stretto {

using GemmArOperator = ProductOperator<GemmArDesc, GemmArConfig>;
GemmArOperator gemm_ar_operator();
GemmArOperator gemm_ar_two_shot_operator();
GemmArOperator gemm_ar_shared_operator();
GemmArOperator gemm_ar_fp8_operator();
GemmArOperator gemm_ar_fp8_block_operator();

OperatorInfo gemm_ar_info();
OperatorInfo gemm_ar_two_shot_info();
OperatorInfo gemm_ar_shared_info();
OperatorInfo gemm_ar_fp8_info();
OperatorInfo gemm_ar_fp8_block_info();

}  // namespace stretto
