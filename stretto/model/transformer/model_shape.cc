#include "stretto/model/transformer/model_shape.h"

#include <numeric>

namespace stretto {

std::vector<int> ranks_of_group(const ModelShape& shape, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(shape.world_size));
  std::iota(ranks.begin(), ranks.end(), rank / shape.world_size * shape.world_size);
  return ranks;
}

}  // namespace stretto
