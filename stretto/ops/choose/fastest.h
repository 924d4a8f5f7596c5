// The program of a product, or of a layer of experts, whose config is predicted to be the fastest
// on a machine: what the model takes for prompts, and Python for experts, by descs (with residuals,
// biases) instead of the catalog's shapes. The same on every rank that reads the same machine file.
// Choices are kept as choose.h says.
#pragma once

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/ulysses/ulysses.h"
#include "stretto/predict/machine.h"

namespace stretto {

// UserError where none can be predicted, as with more ranks than the machine has GPUs.
Program fastest_program(const GemmDesc& desc, const predict::Machine& machine);
Program fastest_program(const AgGemmDesc& desc, const predict::Machine& machine);
Program fastest_program(const GemmRsDesc& desc, const predict::Machine& machine);
Program fastest_gemm_a2a(const UlyssesDesc& desc, const predict::Machine& machine);
Program fastest_a2a_gemm(const UlyssesDesc& desc, const predict::Machine& machine);

// The fastest config among those whose tiles have the rows of `base`, for which the tables are
// made. `base` is the default.
Program fastest_program(const AgGroupedDesc& desc, const AgGroupedConfig& base,
                        const predict::Machine& machine);
Program fastest_program(const GroupedRsDesc& desc, const GroupedRsConfig& base,
                        const predict::Machine& machine);
Program fastest_program(const MoeLayerDesc& desc, const MoeLayerConfig& base,
                        const predict::Machine& machine);

}  // namespace stretto
