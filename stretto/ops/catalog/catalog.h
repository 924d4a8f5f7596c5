// Every shipped operator, in one list: what tests, the proof, `stretto prove --all` and `stretto
// bench` walk over.
#pragma once

#include <string>
#include <vector>

#include "stretto/ops/operator/operator.h"

namespace stretto {

const std::vector<OperatorInfo>& catalog();

// nullptr where no operator has that name.
const OperatorInfo* find_operator(const std::string& name);

}  // namespace stretto
