#include <algorithm>
#include <cmath>
#include <cstdint>

#include "stretto/ops/moe/expert_tiles.h"

namespace stretto {
namespace {

// In a second: bytes that arrive, floating-point operations of products, bytes of memory. They are
// an H200's (predict/machines/h200x4.json), less what the first two lose beside each other.
constexpr double kLinkBytes = 350e9, kFlops = 600e12, kMemoryBytes = 4e12;
// Of gate, by which a token is multiplied for all its experts, where they are not known: with them
// a quarter of the experts keep one of two ranks busy.
constexpr double kUnknownColumns = 6880;
constexpr double kTileColumns = 128, kMostSms = 0.75;  // part of all
// Fewer experts in classes than these are too few, since ranks do not begin together.
constexpr double kFewestEarly = 4;

}  // namespace

bool are_pushed(const ExpertTiles& t, std::int64_t hidden) {
  // Elements of two bytes. Pushes of more take longer than an engine's transfers.
  constexpr std::int64_t kMostElements = 2 << 20;
  return t.shape.world_size > 1 &&
         ceil_div(t.shape.m, std::int64_t{t.shape.world_size}) * hidden <= kMostElements;
}

ExpertTileOrder order_in_classes(const ExpertTiles& t, const GpuTarget& gpu,
                                 const LayerSizes& sizes) {
  if (t.shape.world_size == 1) return {};
  const auto ranks = static_cast<double>(t.shape.world_size);
  const double own_tokens = static_cast<double>(t.shape.m) / ranks;
  const double own_rows =  // of an expert
      own_tokens * static_cast<double>(t.shape.top_k) / static_cast<double>(t.shape.num_experts);
  const double columns = sizes.ffn > 0 ? static_cast<double>(sizes.ffn * t.expert_groups)
                                       : kUnknownColumns / static_cast<double>(t.shape.top_k);
  // Seconds for each hidden column, of two bytes: until one rank's tokens have travelled; of an
  // expert until its rows of them are multiplied by gate and up, and until these are read.
  const double travel = own_tokens * 2 / kLinkBytes;
  const double products = own_rows * columns * 2 * 2 / kFlops;
  const double weights = columns * 2 * 2 / kMemoryBytes;
  // Each class lasts while one rank's tokens travel, which come one rank after the other, and for
  // as long again, since no rank begins at once.
  double early = 2 * travel / products;
  if (weights > products) {
    // Reading them for every class is what takes time: no more than keep memory busy meanwhile. An
    // expert's last tile of a class has half its rows on average, and waits for the next rank.
    const double before = (ranks - 1) * own_rows / static_cast<double>(t.tile_rows);
    const double filled = std::max(before - 0.5, 0.0);
    if (filled > 0) early = std::min(early, travel / weights * before / filled);
  }
  early = std::max(early, kFewestEarly);
  // Tiles of the own rows alone, of which an expert's last one is not: for most SMs one, which wait
  // for other ranks at once without it. More ranks would read the weights once for each.
  const double own_tiles =
      (own_rows / static_cast<double>(t.tile_rows) - 0.5) * columns / kTileColumns;
  if (t.shape.world_size == 2 && own_tiles >= 1)
    early = std::max(early, kMostSms * gpu.sms / own_tiles);
  ExpertTileOrder order{.stages = t.shape.world_size, .in_step = t.expert_groups == 1};
  // Of all experts tables take fewer registers.
  if (early < static_cast<double>(t.split().share())) {
    order.early_experts = static_cast<std::int64_t>(std::ceil(early));
  }
  return order;
}

ExpertTileOrder default_order(const ExpertTiles& t, Target target, const LayerSizes& sizes) {
  if (target == Target::kCpu) return {.stages = t.shape.world_size};
  // Tiles of different experts share nothing. Groups' tokens are sent by those who multiply, who
  // begin at different times, so that to stay in step takes longer there.
  const bool few = t.shape.m * t.shape.top_k <= t.shape.num_experts * t.tile_rows;
  if (few || t.expert_groups > 1) return {.in_step = false};
  if (sizes.hidden > 0 && are_pushed(t, sizes.hidden)) return {};
  return order_in_classes(t, target.gpu(), sizes);
}

}  // namespace stretto
