// What lists of configs are made with.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

inline bool is_half(DType a, DType b) { return a == b && size_bytes(a) == 2; }

// Adds a config that is not there yet.
template <typename Config>
void add(std::vector<Config>& configs, const Config& config) {
  std::string text = to_string(config);
  bool known = std::any_of(configs.begin(), configs.end(),
                           [&](const Config& other) { return to_string(other) == text; });
  if (!known) configs.push_back(config);
}

}  // namespace stretto
