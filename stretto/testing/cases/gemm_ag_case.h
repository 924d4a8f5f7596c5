// Cases of gemm_ag for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>

#include "stretto/ops/gemm_ag/gemm_ag_shapes.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_ag_case(const GemmAgDesc& desc, const GemmAgConfig& config, std::int64_t m,
                    std::uint64_t seed);

}  // namespace stretto
