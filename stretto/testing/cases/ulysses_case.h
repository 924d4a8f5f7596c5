// Cases of the products around attention with spread heads, with their plain fp64 references.
#pragma once

#include <cstdint>

#include "stretto/ops/ulysses/ulysses.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m`: tokens of all ranks in the launch, 0 <= m <= desc.m.
OpCase gemm_a2a_case(const UlyssesDesc& desc, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed);
OpCase a2a_gemm_case(const UlyssesDesc& desc, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed);

}  // namespace stretto
