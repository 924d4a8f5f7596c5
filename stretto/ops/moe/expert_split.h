// Which experts a rank has. Groups of consecutive ranks have ceil(num_experts / groups) experts
// each, the last groups fewer or none; a group's ranks have a part of each of its experts. One
// group: every rank has a part of every expert.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "stretto/ir/expr.h"

namespace stretto {

struct ExpertSplit {
  std::int64_t num_experts = 1;
  int world_size = 1;
  int groups = 1;  // divides world_size

  int ranks_per_group() const { return world_size / groups; }
  std::int64_t share() const { return ceil_div(num_experts, std::int64_t{groups}); }
  // The experts of a rank are first(rank) <= e < end(rank).
  std::int64_t first(int rank) const {
    return std::min(rank / ranks_per_group() * share(), num_experts);
  }
  std::int64_t end(int rank) const { return std::min(first(rank) + share(), num_experts); }
  Expr first(const Expr& rank) const {
    return min(rank / ranks_per_group() * share(), num_experts);
  }
  Expr end(const Expr& rank) const { return min(first(rank) + share(), num_experts); }
};

// UserError where the groups are no whole number of ranks each.
void check_split(const std::string& op, const ExpertSplit& split);

}  // namespace stretto
