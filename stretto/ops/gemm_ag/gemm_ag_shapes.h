// Rows of the catalog: what gemm_ag makes of a shape that is asked for.
// m: rows, n: columns of c, of all ranks, k: the summed dimension.
#pragma once

#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/gemm_ag/gemm_ag.h"

namespace stretto {

// n is rounded up to what the ranks share alike.
GemmAgDesc gemm_ag_desc(const OpShape& shape, Scaling scaling = Scaling::kNone);

using GemmAgOperator = ProductOperator<GemmAgDesc, GemmAgConfig>;
GemmAgOperator gemm_ag_operator();
GemmAgOperator gemm_ag_fp8_operator();

OperatorInfo gemm_ag_info();
OperatorInfo gemm_ag_fp8_info();

}  // namespace stretto
