#include "stretto/ops/moe/ep_combine.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/harness/field_fit.h"

namespace stretto {
namespace {

void fit(const FieldFit& fields, const EpDesc& d, EpCombineConfig& c) {
  std::int64_t tiles = ceil_div(d.rows_per_rank(), c.tile_rows);
  fields.only("channels", c.channels, possible_channels(tiles, c.channels),
              fmt::format("{} tiles of {} rows, as many to a channel", tiles, c.tile_rows));
}

void check(const EpDesc& d, const EpCombineConfig& c) {
  check_sizes("ep_combine", {{"m", d.m},
                             {"hidden", d.hidden},
                             {"num_experts", d.num_experts},
                             {"top_k", d.top_k},
                             {"world_size", d.world_size},
                             {"tile_rows", c.tile_rows},
                             {"channels", c.channels},
                             {"num_workers", c.num_workers},
                             {"num_sum_workers", c.num_sum_workers}});
  check_dtype("ep_combine", "dtype", d.dtype);
  check_split("ep_combine", split_of(d));
  EpCombineConfig will_run = c;
  fit(FieldFit::refusing("ep_combine " + to_string(d)), d, will_run);
}

}  // namespace

EpCombineConfig fitted(const EpDesc& d, EpCombineConfig c) {
  fit(FieldFit::reducing(), d, c);
  return c;
}

EpCombineConfig default_combine_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.rows_per_rank();
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, rows)};
  // Elements that a thread has on their way, and words of flags.
  constexpr std::int64_t kElements = 128, kMostChannels = 16;
  EpCombineConfig c{.threads = row_threads(d.hidden)};
  std::int64_t threads = c.threads > 0 ? c.threads : 256;
  c.tile_rows = std::clamp<std::int64_t>(kElements * threads / (d.top_k * d.hidden), 1,
                                         std::min<std::int64_t>(rows, 4));
  std::int64_t tiles = ceil_div(rows, c.tile_rows);
  c.channels = std::min(tiles, kMostChannels);
  // A rank reads top_k rows of a token to weigh them, and one of each other rank to sum.
  c.num_sum_workers = gpu_workers(tiles, kGpuSms / 3);
  c.num_workers = gpu_workers(d.world_size * tiles, kGpuSms - c.num_sum_workers);
  return fitted(d, c);
}

Program ep_combine(const EpDesc& d, const EpCombineConfig& cfg) {
  check(d, cfg);
  std::int64_t rows = d.rows_per_rank(), ranks = d.world_size, tile_rows = cfg.tile_rows;
  std::int64_t slots_of_all = d.received_rows() * d.top_k;
  ProgramBuilder p("ep_combine", d.world_size);
  Index own_rows = ceil_div(p.extent("m", d.m), d.world_size);
  TensorRef y = p.input("y", d.dtype, {slots_of_all, d.hidden});
  TensorRef slots =
      p.table("slots", {ranks * rows, d.top_k}, {ContractKind::kRange, -1, slots_of_all});
  TensorRef weights = p.input("recv_weights", DType::kF32, {ranks * rows, d.top_k});
  TensorRef positions = p.table("positions", {rows, ranks}, {ContractKind::kRange, -1, rows});
  TensorRef residual = p.input("residual", d.dtype, {own_rows, d.hidden});
  TensorRef out = p.output("out", d.dtype, {own_rows, d.hidden});
  TensorRef parts =
      p.buffer("parts", d.dtype, {ranks, rows, d.hidden}, {.space = Space::kSymmetric});
  std::int64_t tiles = ceil_div(rows, tile_rows);
  std::int64_t channel_tiles = ceil_div(tiles, cfg.channels);
  std::int64_t channels = ceil_div(tiles, channel_tiles);
  // By rank and channel: tiles of my tokens that are there.
  SignalRef weighed = p.signal("weighed", ranks * channels);
  SignalRef done = p.signal("done");  // by rank: tiles of its sums that have read mine

  p.role("weigh", Resource::sms(cfg.num_workers), p.range(ranks * tiles), [&](const Tile& t) {
    Index of = p.let("of", (p.rank() + t.index) % ranks), tile = t.index / ranks;
    Index first = p.let("first", tile * tile_rows);
    Index row = p.let("row", of * rows + first);
    // Loads stand side by side: all are on their way before the first is used.
    std::vector<Value> picked, shares, results;
    for (std::int64_t j = 0; j < d.top_k; ++j) {
      picked.push_back(p.load(slots.tile({row, j}, tile_rows, 1)));
      shares.push_back(p.load(weights.tile({row, j}, tile_rows, 1)));
    }
    Value exists = p.iota_rows(first, tile_rows) < p.splat(DType::kI32, rows);
    for (Value& slot : picked) slot = where(exists, slot, p.splat(DType::kI32, -1));
    for (const Value& slot : picked) {
      results.push_back(p.load_rows(y.tile({0, 0}, tile_rows, d.hidden), slot));
    }
    Value sum = p.zeros(DType::kF32, tile_rows, d.hidden);
    for (std::size_t j = 0; j < results.size(); ++j) {
      sum = sum + cast(results[j], DType::kF32) * shares[j];
    }
    p.store(parts.tile({of, first, 0}, tile_rows, d.hidden), cast(sum, d.dtype));
    p.notify(weighed[p.rank() * channels + tile / channel_tiles], of);
  });
  // A token's place in a list is at most its number: it needs what was weighed first.
  auto add_up = [&](const Index& token) {
    std::vector<Value> came;
    for (std::int64_t r = 0; r < ranks; ++r) {
      Index place = p.let("place", min(p.read(positions, {token, r}), token));
      Slice part = parts.on(r).tile({p.rank(), max(place, 0), 0}, 1, d.hidden);
      came.push_back(p.load(part.until_row(place + 1)));
    }
    came.push_back(p.load(residual.tile({token, 0}, 1, d.hidden)));
    Value sum = p.zeros(DType::kF32, 1, d.hidden);
    for (const Value& part : came) sum = sum + cast(part, DType::kF32);
    p.store(out.tile({token, 0}, 1, d.hidden), cast(sum, d.dtype));
  };
  p.role("sum", Resource::sms(cfg.num_sum_workers), p.range(tiles), [&](const Tile& t) {
    Index first = p.let("first", t.index * tile_rows), channel = t.index / channel_tiles;
    p.loop(ranks, [&](const Index& r) {
      p.loop(channel + 1, [&](const Index& c) {
        p.wait(weighed[r * channels + c], min(channel_tiles, tiles - c * channel_tiles));
      });
    });
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      p.when(first + i < own_rows, [&] { add_up(p.let("token", first + i)); });
    }
    p.notify_all(done);
  });
  p.on_end([&] { p.loop(ranks, [&](const Index& r) { p.wait(done[r], tiles); }); });
  Program program = p.finish();
  for (Role& role : program.roles) role.agents[0].num_threads = cfg.threads;
  return program;
}

}  // namespace stretto
