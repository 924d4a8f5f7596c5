// Cases of ag_columns_gemm for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>

#include "stretto/ops/ag_gemm/ag_columns_shapes.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase ag_columns_case(const AgColumnsDesc& desc, const AgColumnsConfig& config, std::int64_t m,
                       std::uint64_t seed);

}  // namespace stretto
