// What every operator of a layer of experts is asked: how many tokens go to how many experts. Comes
// before their descs, which have it among their fields.
#pragma once

#include <cstdint>

#include "stretto/ir/expr.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

struct ExpertShape {
  int world_size = 1;
  // Most tokens of all ranks, of which rank r has those from r * rows_per_rank() on; each launch
  // has 0 <= m <= this.
  std::int64_t m = 1;
  std::int64_t top_k = 1;        // experts of a token
  std::int64_t num_experts = 1;  // of all ranks

  // Most tokens of a rank: S. A launch of m tokens has ceil(m / P) on each, fewer on the last ones.
  std::int64_t rows_per_rank() const { return ceil_div(m, std::int64_t{world_size}); }

  friend bool operator==(const ExpertShape&, const ExpertShape&) = default;
};

// "P=2 m=8 top 2 of 6 experts".
NamedFields fields_of(ExpertShape& shape);

}  // namespace stretto
