// What the rows of the catalog make of a shape: m tokens of all ranks; n and k of the weights,
// rounded up to what the ranks share alike.
#pragma once

#include "stretto/ops/operator/operator.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {

UlyssesDesc gemm_a2a_desc(const OpShape& shape);
UlyssesDesc a2a_gemm_desc(const OpShape& shape);

using UlyssesDefault = UlyssesConfig (*)(const UlyssesDesc&, Target);
// The default, but with small tiles for small shapes on CPU ranks.
UlyssesConfig ulysses_config(const UlyssesDesc& desc, Target target, UlyssesDefault default_of);

}  // namespace stretto
