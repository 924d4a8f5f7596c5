// What the rows of the catalog make of a shape: m tokens, a vocabulary of n, hidden size k.
#pragma once

#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

VocabDesc vocab_desc(const OpShape& shape);
VocabConfig lookup_config(const VocabDesc& desc, Target target);
VocabConfig head_config(const VocabDesc& desc, Target target);

}  // namespace stretto
