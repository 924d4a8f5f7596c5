// Rows of the catalog: what gemm_rs makes of a shape that is asked for.
// m: rows of all ranks, n: columns, k: the summed dimension over all ranks.
#pragma once

#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto {

using GemmRsOperator = ProductOperator<GemmRsDesc, GemmRsConfig>;
GemmRsOperator gemm_rs_operator();
GemmRsOperator gemm_rs_copy_operator();
GemmRsOperator gemm_rs_fp8_rows_operator();
GemmRsOperator gemm_rs_fp8_operator();

OperatorInfo gemm_rs_info();
OperatorInfo gemm_rs_copy_info();
OperatorInfo gemm_rs_fp8_rows_info();
OperatorInfo gemm_rs_fp8_info();

}  // namespace stretto
