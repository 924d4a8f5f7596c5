// How many rows a mixture of experts' products have for each that holds a token, since tiles are of
// one expert each (ops/moe/expert_tiles.h): the table of docs/performance/moe.md. Needs no GPU.
#pragma once

#include <cstdint>
#include <string>

namespace stretto::bench {

struct PaddingOptions {
  int world_size = 2;
  int classes = 1;  // of the tables (ExpertTileOrder::stages), at most world_size
  std::int64_t tile_rows = 128;
  int routings = 20;  // random ones, of which the mean is taken
  std::uint64_t seed = 0;
};

// A row of Markdown for each number of tokens, a column for each model of moe_shapes(): rows of all
// tiles over rows with a token, and in brackets the same where the second half of a tile counts
// only if it holds one (AgGroupedConfig::skip_dead_rows). UserError for more classes than ranks.
std::string padding_table(const PaddingOptions& options);

}  // namespace stretto::bench
