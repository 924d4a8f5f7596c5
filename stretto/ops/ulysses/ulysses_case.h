// Cases of the products around attention with spread heads, with their plain fp64 references.
#pragma once

#include <cstdint>

#include "stretto/ops/harness/op_case.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

// What the catalog makes of a shape: m tokens of all ranks; n and k of the weights, rounded up to
// what the ranks share alike.
UlyssesDesc gemm_a2a_desc(const OpShape& shape);
UlyssesDesc a2a_gemm_desc(const OpShape& shape);

// `m`: tokens of all ranks in the launch, 0 <= m <= desc.m.
OpCase gemm_a2a_case(const UlyssesDesc& desc, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed);
OpCase a2a_gemm_case(const UlyssesDesc& desc, const UlyssesConfig& config, std::int64_t m,
                     std::uint64_t seed);

}  // namespace stretto
