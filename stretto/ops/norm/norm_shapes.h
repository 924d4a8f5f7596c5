// What the rows of the catalog make of a shape: m rows of n elements.
#pragma once

#include "stretto/ops/norm/norm.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

NormDesc norm_desc(const OpShape& shape);
NormDesc with_residual(NormDesc desc);
NormConfig norm_config(const NormDesc& desc, Target target);
NormConfig all_reduce_norm_config(const NormDesc& desc, Target target);
NormConfig reduce_scatter_norm_config(const NormDesc& desc, Target target);
// Of n columns over all ranks; of odd m with a residual.
NormDesc columns_norm_desc(const OpShape& shape);
NormConfig columns_norm_config(const NormDesc& desc, Target target);

}  // namespace stretto
