#include <algorithm>
#include <cmath>

#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"

namespace stretto {
namespace {

// What travels from a rank in two slots and not in one, where experts are drawn by lot.
double rows_of_nothing_bytes(const EpDesc& d) {
  const double rows = static_cast<double>(d.rows_per_rank()) * (d.world_size - 1);
  const double no_expert = std::pow(1 - 1.0 / d.expert_groups, static_cast<double>(d.top_k));
  return rows * no_expert * static_cast<double>(d.hidden) *
         static_cast<double>(size_bytes(d.dtype));
}

}  // namespace

SendConfig default_send_config(const EpDesc& d, Target target, bool private_results) {
  // Of long steps buffers would take twice the memory of all ranks' tokens.
  constexpr std::int64_t kShortStep = 128;
  const int num_slots = private_results && d.rows_per_rank() <= kShortStep ? 2 : 1;
  if (target == Target::kCpu) return {.num_slots = num_slots};
  // As many as leave every worker several tiles. One slot: to copy out of two takes as long as to
  // ask, and longer from 16 tokens of each of four ranks on (7.1 us and 7.4, with 128 19.5 and
  // 23.4: predicted for H200s, 2026-11-26).
  constexpr std::int64_t kMostTokens = 8;
  constexpr std::int64_t kMostThreads = 512;  // more have no registers for rows of several ranks
  std::int64_t rows = d.rows_per_rank();
  std::int64_t tokens = std::clamp<std::int64_t>(rows / (3 * target.sms()), 1, kMostTokens);
  return {.num_workers = gpu_workers(ceil_div(rows, tokens), target.sms()),
          .threads = num_slots > 1 ? row_threads(d.hidden, kMostThreads) : row_threads(d.hidden),
          .tile_tokens = tokens,
          .num_slots = num_slots};
}

PlaceConfig default_place_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.received_rows();
  PlaceConfig c{
      .tiles = default_placing_tiles(rows, d.top_k, split_of(d).share(), target.sms(), target)};
  if (target == Target::kCpu) return c;
  c.num_workers = gpu_workers(
      std::max(ceil_div(rows, c.tiles.part_tokens), ceil_div(rows * d.top_k, c.tiles.tile_slots)),
      target.sms());
  return c;
}

ReturnConfig default_return_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  // Not to ask saves 1 us, 2 with 128 tokens of each of two ranks: predicted for H200s, 2 to 8,
  // with 1 to 256 tokens, 2026-11-26. As many bytes take as long.
  constexpr double kLeastSaved = 1 << 20;
  // One token at a time has registers for few threads; of long steps, where every worker has
  // several tiles, as many tokens are sent before the rank is told, and half of the workers sum
  // alone (two H200s, 2026-11-23, gpu_bench exchange, 4096 tokens: 0.25 ms and with 4 tokens a tile
  // 0.26 at 4a9f739; with two thirds 0.31, where all do both 0.31 to 0.32 at a3a1ced).
  constexpr std::int64_t kMostTokens = 8, kMostThreads = 512;
  std::int64_t rows = d.rows_per_rank();
  ReturnConfig c{.threads = row_threads(d.hidden, kMostThreads)};
  c.tile_tokens = std::clamp<std::int64_t>(rows / (3 * target.sms()), 1, kMostTokens);
  c.num_workers = gpu_workers(ceil_div(rows, c.tile_tokens), target.sms());
  if (c.tile_tokens == 1) {
    c.num_slots = d.world_size > 1 && rows_of_nothing_bytes(d) < kLeastSaved ? 2 : 1;
    return c;
  }
  // Of 4096 tokens on four H200s, 2026-11-26, 96 workers of 448 threads that send and 36 that sum
  // 4 tokens at a time take 0.519 ms, half of the workers each and larger ones 0.534; two send
  // less.
  const bool many = d.world_size > 2;
  c.threads = many ? row_threads(d.hidden, kMostThreads) : row_threads(d.hidden);
  if (d.world_size == 1) return c;
  c.num_sum_workers = many ? c.num_workers * 3 / 11 : c.num_workers / 2;
  c.num_workers -= c.num_sum_workers;
  c.channels = many ? 64 : 32;
  c.sum_tokens = many ? c.tile_tokens / 2 : 0;
  return fitted(d, c);
}

}  // namespace stretto
