// The program of a product whose config is predicted to be the fastest on a machine: what the model
// takes for prompts, by descs (with residuals, biases) instead of the catalog's shapes. The same on
// every rank that reads the same machine file. Choices are kept as choose.h says.
#pragma once

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/ulysses/ulysses.h"
#include "stretto/predict/machine.h"

namespace stretto {

// UserError where none can be predicted, as with more ranks than the machine has GPUs.
Program fastest_program(const GemmDesc& desc, const predict::Machine& machine);
Program fastest_program(const AgGemmDesc& desc, const predict::Machine& machine);
Program fastest_program(const GemmRsDesc& desc, const predict::Machine& machine);
Program fastest_gemm_a2a(const UlyssesDesc& desc, const predict::Machine& machine);
Program fastest_a2a_gemm(const UlyssesDesc& desc, const predict::Machine& machine);

}  // namespace stretto
