// Cases of ag_gemm for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase ag_gemm_case(const AgGemmDesc& desc, const AgGemmConfig& config, std::int64_t m,
                    std::uint64_t seed);

// m: rows of all ranks, n: columns of c over all ranks, k: the summed dimension.
OperatorInfo ag_gemm_info();
OperatorInfo ag_gemm_push_info();
OperatorInfo ag_gemm_fp8_info();
OperatorInfo ag_gemm_fp8_block_info();
OperatorInfo ag_gemm_gathered_info();

}  // namespace stretto
