#include <algorithm>

#include "stretto/ops/moe/placing.h"

namespace stretto {

PlacingTiles default_placing_tiles(std::int64_t most_tokens, std::int64_t top_k,
                                   std::int64_t num_experts, int num_workers, Target target) {
  if (target == Target::kCpu) {
    std::int64_t tokens = std::min<std::int64_t>(64, most_tokens);
    return {.part_tokens = tokens,
            .count_tokens = tokens,
            .tile_slots = std::min<std::int64_t>(64, most_tokens * top_k)};
  }
  // The tensor core counts: two warpgroups of 64 rows, columns in eights, which keep to the
  // registers beside four for each of a token's experts. One of two blocks waits less than another
  // part would, and parts are what each part adds up.
  constexpr std::int64_t kTokens = 128, kMostBlocks = 2, kColumns = 8, kMostColumns = 32;
  constexpr std::int64_t kPairs = 300;  // columns times experts of a token
  std::int64_t blocks = ceil_div(ceil_div(most_tokens, kTokens), std::int64_t{num_workers});
  std::int64_t columns = kMostColumns;
  while (columns > kColumns && (columns >= 2 * num_experts || columns * top_k > kPairs)) {
    columns /= 2;
  }
  // A row is a thread's; of several the loads of a step of the search are under way together.
  constexpr std::int64_t kThreads = 256, kMostRowsOfThread = 8;
  std::int64_t rows = ceil_div(ceil_div(most_tokens * top_k, std::int64_t{num_workers}), kThreads);
  return {.part_tokens = std::min(blocks, kMostBlocks) * kTokens,
          .count_tokens = kTokens,
          .count_experts = columns,
          .add_counts = 8192,
          .tile_slots = std::min(rows, kMostRowsOfThread) * kThreads};
}

}  // namespace stretto
