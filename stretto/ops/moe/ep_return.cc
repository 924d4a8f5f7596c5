#include "stretto/ops/moe/ep_return.h"

#include <algorithm>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const ReturnConfig& c) {
  check_sizes("ep_return", {{"m", d.m},
                            {"hidden", d.hidden},
                            {"num_experts", d.num_experts},
                            {"top_k", d.top_k},
                            {"world_size", d.world_size},
                            {"num_workers", c.num_workers},
                            {"tile_tokens", c.tile_tokens},
                            {"channels", c.channels}});
  check_sizes("ep_return", {{"num_sum_workers", c.num_sum_workers}}, 0);
  check_dtype("ep_return", "dtype", d.dtype);
  check_split("ep_return", split_of(d));
}

}  // namespace

ReturnConfig default_return_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  ReturnConfig c{.threads = row_threads(d.hidden)};
  // Of long steps, where every worker has several tiles, a third of the workers sums what is there
  // while the others weigh.
  constexpr std::int64_t kMostTokens = 4, kMostChannels = 16;
  std::int64_t rows = d.rows_per_rank();
  c.tile_tokens = std::clamp<std::int64_t>(rows / (4 * kGpuSms), 1, kMostTokens);
  if (c.tile_tokens > 1) {
    c.channels = kMostChannels;
    c.num_sum_workers = kGpuSms / 3;
  }
  c.num_workers =
      gpu_workers(ceil_div(d.received_rows(), c.tile_tokens), kGpuSms - c.num_sum_workers);
  return c;
}

Program ep_return(const EpDesc& d, const ReturnConfig& cfg) {
  check(d, cfg);
  const std::int64_t rows = d.rows_per_rank(), ranks = d.world_size;
  const std::int64_t slots_of_all = d.received_rows() * d.top_k;
  ProgramBuilder p("ep_return", d.world_size);
  Index own_rows = ceil_div(p.extent("m", d.m), ranks);
  TensorRef y = p.input("y", d.dtype, {slots_of_all, d.hidden});
  TensorRef slots =
      p.table("slots", {ranks * rows, d.top_k}, {ContractKind::kRange, -1, slots_of_all});
  TensorRef weights = p.input("recv_weights", DType::kF32, {ranks * rows, d.top_k});
  TensorRef positions = p.table("positions", {rows, ranks}, {ContractKind::kRange, -1, rows});
  TensorRef residual = p.input("residual", d.dtype, {own_rows, d.hidden});
  TensorRef parts = p.state("parts", d.dtype, {ranks, rows, d.hidden}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {own_rows, d.hidden});
  const std::int64_t tiles = ceil_div(rows, cfg.tile_tokens);
  const std::int64_t channel_tiles = ceil_div(tiles, cfg.channels);
  const std::int64_t channels = ceil_div(tiles, channel_tiles);
  SignalRef ready = p.signal("ready");  // a rank's launch has begun: its parts may be written
  // By rank and channel: tiles whose rows are there, or are none of that rank's.
  SignalRef returned = p.signal("returned", ranks * channels);
  auto each_token = [&](const Index& tile, const auto& visit) {
    if (cfg.tile_tokens == 1) return visit(tile);
    p.loop(cfg.tile_tokens, [&](const Index& i) {
      Index token = p.let("token", tile * cfg.tile_tokens + i);
      p.when(token < rows, [&] { visit(token); });
    });
  };

  p.on_start([&] { p.notify_all(ready); });
  auto weigh_token = [&](const Index& of, const Index& token) {
    Index row = p.let("row", of * rows + token);
    Index any = 0;
    std::vector<Index> picked;
    std::vector<Value> shares, results;  // all are on their way before the first is used
    for (std::int64_t j = 0; j < d.top_k; ++j) {
      picked.push_back(p.read(slots, {row, j}));
      shares.push_back(p.load(weights.tile({row, j}, 1, 1)));
    }
    for (const Index& slot : picked) {
      any = any || slot >= 0;
      results.push_back(p.load(y.tile({max(slot, 0), 0}, 1, d.hidden).until_row(slot + 1)));
    }
    Value sum = p.zeros(DType::kF32, 1, d.hidden);
    for (std::size_t j = 0; j < results.size(); ++j) {
      sum = sum + cast(results[j], DType::kF32) * shares[j];
    }
    if (cfg.tile_tokens == 1) p.wait(ready, of);
    p.when(any, [&] {
      p.store(parts.on(of).tile({p.rank(), token, 0}, 1, d.hidden), cast(sum, d.dtype));
    });
  };
  auto weigh = [&](const Index& index) {
    Index of = p.let("of", (p.rank() + 1 + index) % ranks), tile = p.let("tile", index / ranks);
    if (cfg.tile_tokens > 1) p.wait(ready, of);
    each_token(tile, [&](const Index& token) { weigh_token(of, token); });
    p.notify(returned[p.rank() * channels + tile / channel_tiles], of);
  };
  // Some ranks' parts at a time: all are on their way before the first is added.
  constexpr std::int64_t kSomeRanks = 4;
  auto sum_token = [&](const Index& token) {
    Value sum = p.zeros(DType::kF32, 1, d.hidden);
    Value old = p.load(residual.tile({token, 0}, 1, d.hidden));
    for (std::int64_t first = 0; first < ranks; first += kSomeRanks) {
      std::vector<Value> some;
      for (std::int64_t r = first; r < std::min(first + kSomeRanks, ranks); ++r) {
        Index came = p.let("came", p.read(positions, {token, r}) >= 0);
        some.push_back(p.load(parts.tile({r, token, 0}, 1, d.hidden).until_row(token + came)));
      }
      for (const Value& part : some) sum = sum + cast(part, DType::kF32);
    }
    p.store(out.tile({token, 0}, 1, d.hidden), cast(sum + cast(old, DType::kF32), d.dtype));
  };
  auto sum_up = [&](const Index& tile) {
    Index channel = p.let("channel", tile / channel_tiles);
    p.loop(ranks, [&](const Index& r) {
      p.wait(returned[r * channels + channel], min(channel_tiles, tiles - channel * channel_tiles));
    });
    each_token(tile, sum_token);
  };
  if (cfg.num_sum_workers > 0) {
    p.role("weigh", Resource::sms(cfg.num_workers), p.range(ranks * tiles),
           [&](const Tile& t) { weigh(t.index); });
    p.role("sum", Resource::sms(cfg.num_sum_workers), p.range(tiles),
           [&](const Tile& t) { sum_up(t.index); });
  } else {
    // Weighing comes first, so that a worker that takes tiles in order never waits for itself.
    p.role("combine", Resource::sms(cfg.num_workers), p.range((ranks + 1) * tiles),
           [&](const Tile& t) {
             p.when(
                 t.index < ranks * tiles, [&] { weigh(t.index); },
                 [&] { sum_up(p.let("own", t.index - ranks * tiles)); });
           });
  }
  Program program = p.finish();
  for (Role& role : program.roles) role.agents[0].num_threads = cfg.threads;
  return program;
}

}  // namespace stretto
