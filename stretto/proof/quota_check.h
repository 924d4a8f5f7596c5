// Whether a launch adds to each counter what every launch adds, and waits for no more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/finding.h"
#include "stretto/proof/instance_graph.h"

namespace stretto {

// What is wrong with a counter of a launch, `where` being its sizes; `quota` is what others add.
std::optional<Finding> wrong_counter(const InstanceGraph& graph, const std::string& where,
                                     const std::vector<std::int64_t>& quota);

}  // namespace stretto
