// Cases of gemm_ar for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>

#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_ar_case(const GemmArDesc& desc, const GemmArConfig& config, std::int64_t m,
                    std::uint64_t seed);

// m: rows, n: columns, k: the summed dimension over all ranks.
OperatorInfo gemm_ar_info();
OperatorInfo gemm_ar_two_shot_info();
OperatorInfo gemm_ar_shared_info();
OperatorInfo gemm_ar_fp8_info();
OperatorInfo gemm_ar_fp8_block_info();

}  // namespace stretto
