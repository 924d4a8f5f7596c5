// Products for GPUs with the config that prediction ranks first (ops/choose). Comes before
// programs.cc, which offers them to Python.
#pragma once

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto::python {

// Ranked for the H200s of one host, once per desc: the choice is kept on disk, and is the same in
// every process. Up to some seconds. The default config where there is one rank, or where nothing
// can be predicted. UserError naming the field of a bad desc.
Program chosen_program(const AgGemmDesc& desc);
Program chosen_program(const GemmRsDesc& desc);
Program chosen_program(const GemmArDesc& desc);

}  // namespace stretto::python
