// Cases of gemm_ar for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>

#include "stretto/ops/gemm_ar/gemm_ar_shapes.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_ar_case(const GemmArDesc& desc, const GemmArConfig& config, std::int64_t m,
                    std::uint64_t seed);

}  // namespace stretto
