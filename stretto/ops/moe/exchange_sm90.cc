#include <algorithm>
#include <cmath>

#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"

namespace stretto {
namespace {

// What travels from a rank in two slots and not in one, where experts are drawn by lot.
double rows_of_nothing_bytes(const EpDesc& d) {
  const double rows = static_cast<double>(d.shape.rows_per_rank()) * (d.shape.world_size - 1);
  const double no_expert = std::pow(1 - 1.0 / d.expert_groups, static_cast<double>(d.shape.top_k));
  return rows * no_expert * static_cast<double>(d.hidden) *
         static_cast<double>(size_bytes(d.dtype));
}

}  // namespace

SendConfig default_send_config(const EpDesc& d, Target target, bool private_results) {
  // Of long steps buffers would take twice the memory of all ranks' tokens.
  constexpr std::int64_t kShortStep = 128;
  const int num_slots = private_results && d.shape.rows_per_rank() <= kShortStep ? 2 : 1;
  if (target == Target::kCpu) return {.num_slots = num_slots};
  // As many as leave every worker several tiles. One slot: to copy out of two takes as long as to
  // ask, or longer (docs/performance/exchange.md, 'Why the defaults are what they are').
  constexpr std::int64_t kMostTokens = 8;
  constexpr std::int64_t kMostThreads = 512;  // more have no registers for rows of several ranks
  std::int64_t rows = d.shape.rows_per_rank();
  std::int64_t tokens = std::clamp<std::int64_t>(rows / (3 * target.sms()), 1, kMostTokens);
  return {.num_workers = gpu_workers(ceil_div(rows, tokens), target.sms()),
          .threads = num_slots > 1 ? row_threads(d.hidden, kMostThreads) : row_threads(d.hidden),
          .tile_tokens = tokens,
          .num_slots = num_slots};
}

PlaceConfig default_place_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.received_rows();
  PlaceConfig c{.tiles = default_placing_tiles(rows, d.shape.top_k, split_of(d).share(),
                                               target.sms(), target)};
  if (target == Target::kCpu) return c;
  c.num_workers = gpu_workers(std::max(ceil_div(rows, c.tiles.part_tokens),
                                       ceil_div(rows * d.shape.top_k, c.tiles.tile_slots)),
                              target.sms());
  return c;
}

ReturnConfig default_return_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  // Not to ask saves about as long as so many bytes take.
  constexpr double kLeastSaved = 1 << 20;
  // One token at a time has registers for few threads. In long steps, where every worker has
  // several tiles, as many tokens are sent before the rank is told, and half of the workers only
  // sum (docs/performance/exchange.md, 'Why the defaults are what they are').
  constexpr std::int64_t kMostTokens = 8, kMostThreads = 512;
  std::int64_t rows = d.shape.rows_per_rank();
  ReturnConfig c{.threads = row_threads(d.hidden, kMostThreads)};
  c.tile_tokens = std::clamp<std::int64_t>(rows / (3 * target.sms()), 1, kMostTokens);
  c.num_workers = gpu_workers(ceil_div(rows, c.tile_tokens), target.sms());
  if (c.tile_tokens == 1) {
    c.num_slots = d.shape.world_size > 1 && rows_of_nothing_bytes(d) < kLeastSaved ? 2 : 1;
    return c;
  }
  // Among more than two ranks each sends more, so more and smaller workers send than sum.
  const bool many = d.shape.world_size > 2;
  c.threads = many ? row_threads(d.hidden, kMostThreads) : row_threads(d.hidden);
  if (d.shape.world_size == 1) return c;
  c.num_sum_workers = many ? c.num_workers * 3 / 11 : c.num_workers / 2;
  c.num_workers -= c.num_sum_workers;
  c.channels = many ? 64 : 32;
  c.sum_tokens = many ? c.tile_tokens / 2 : 0;
  return fitted(d, c);
}

}  // namespace stretto
