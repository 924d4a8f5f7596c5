#include <algorithm>
#include <bit>

#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/table_maker.h"

namespace stretto {

ExpertTablesConfig default_config(const ExpertTablesDesc& d, Target target, int most_workers) {
  const ExpertTiles& t = d.tiles;
  std::int64_t share = ceil_div(t.shape.m, std::int64_t{t.shape.world_size}),
               experts = t.split().share();
  if (target == Target::kCpu) return {.block_tokens = std::min<std::int64_t>(64, share)};
  if (most_workers == 0) most_workers = target.sms();
  // What is compared with all pairs of a block, or with all experts, keeps to the registers.
  constexpr std::int64_t kPairs = 256, kElements = 8192;
  ExpertTablesConfig c;
  c.block_tokens =
      std::clamp<std::int64_t>(kPairs / t.shape.top_k, 1, std::min<std::int64_t>(64, share));
  // Three values of a step stay there from one to the next.
  const auto most_rows = static_cast<std::uint64_t>(3 * kElements / 2 / (kPairs + 2 * experts));
  c.sort_rows =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(std::bit_floor(most_rows)), 1, 32);
  c.part_blocks =
      ceil_div(TableDivision(d, c).parts_of_rank * t.shape.world_size, std::int64_t{most_workers});
  TableDivision division(d, c);
  const std::int64_t most_parts = std::min<std::int64_t>(division.parts(), 256);
  c.count_parts = std::clamp<std::int64_t>(kElements / experts, 1, most_parts);
  c.sum_experts = std::clamp<std::int64_t>(kElements / experts, 1, 64);
  std::int64_t rows = ceil_div(t.num_rows(), std::int64_t{most_workers});
  std::int64_t most = 3 * kElements / 2 / (division.parts_of_group * c.part_blocks);
  c.tile_rows = std::clamp<std::int64_t>(std::min(rows + 31, most) / 32 * 32, 32, 512);
  std::int64_t tiles = std::max(division.parts(), ceil_div(t.num_rows(), c.tile_rows));
  c.num_workers = gpu_workers(tiles, most_workers);
  return c;
}

}  // namespace stretto
