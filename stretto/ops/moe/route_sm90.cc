#include <algorithm>
#include <bit>
#include <numeric>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/route.h"

namespace stretto {
namespace {

// The more tokens at a time, the less each waits for reductions over the threads of a row, as long
// as all workers have some and what is compared keeps to the registers.
std::int64_t choose_rows(const RouteDesc& d, std::int64_t score_rows, int workers) {
  constexpr std::int64_t kElements = 8192, kFewest = 16, kMost = 128;
  // Threads share a row by powers of two. Groups are chosen beside the experts.
  std::uint64_t row = std::bit_ceil(static_cast<std::uint64_t>(d.shape.num_experts));
  std::int64_t most =
      kElements / static_cast<std::int64_t>(row) / (d.topk_group < d.n_group ? 2 : 1);
  std::int64_t rows = std::clamp<std::int64_t>(most, 1, kFewest);
  while (2 * rows <= std::min(kMost, most) && ceil_div(d.shape.m, 2 * rows) >= workers) {
    rows *= 2;
  }
  return std::gcd(score_rows, rows);
}

}  // namespace

RouteConfig default_config(const RouteDesc& d, Target target) {
  auto placing = [&](int workers) {
    return default_placing_tiles(d.shape.m, d.shape.top_k, d.shape.num_experts, workers, target);
  };
  if (target == Target::kCpu) {
    std::int64_t rows = std::min<std::int64_t>(64, d.shape.m);
    return {.score_rows = rows, .tile_rows = rows, .placing = placing(1)};
  }
  // Scores of few experts are as many bytes of x, with hardly any work to choose by.
  constexpr std::int64_t kFewExperts = 32;
  int most = d.shape.num_experts <= kFewExperts ? target.sms() * 2 / 3 : target.sms() / 2;
  MainLoop loop = gpu_loop({.m = d.shape.m,
                            .n = d.shape.num_experts,
                            .k = d.hidden,
                            .a_dtype = d.dtype,
                            .b_dtype = d.weight_dtype,
                            .num_sms = most});
  std::int64_t tiles =
      ceil_div(d.shape.m, loop.tile.bm) * ceil_div(d.shape.num_experts, loop.tile.bn);
  std::int64_t waves = ceil_div(tiles, std::int64_t{most});
  int score = gpu_workers(ceil_div(tiles, waves), target.sms());
  int route = target.sms() - score;
  RouteConfig c{.score_rows = loop.tile.bm,
                .score_experts = loop.tile.bn,
                .tile_k = loop.tile.bk,
                .num_stages = loop.num_stages,
                .num_score_workers = score,
                .tile_rows = choose_rows(d, loop.tile.bm, route),
                .placing = placing(route)};
  c.num_groups = static_cast<int>(waves);
  tiles = ceil_div(d.shape.m, c.tile_rows);
  if (d.tables) tiles = std::max(tiles, ceil_div(d.shape.m * d.shape.top_k, c.placing.tile_slots));
  c.num_workers = gpu_workers(tiles, route);
  return c;
}

}  // namespace stretto
