#include "stretto/ops/moe/ep_combine.h"

#include <algorithm>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const EpCombineConfig& c) {
  check_sizes("ep_combine", {{"m", d.m},
                             {"hidden", d.hidden},
                             {"num_experts", d.num_experts},
                             {"top_k", d.top_k},
                             {"world_size", d.world_size},
                             {"tile_rows", c.tile_rows},
                             {"num_workers", c.num_workers}});
  check_dtype("ep_combine", "dtype", d.dtype);
  check_split("ep_combine", split_of(d));
}

}  // namespace

EpCombineConfig default_combine_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.rows_per_rank();
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, rows)};
  constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
  EpCombineConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, rows)};
  c.num_workers = gpu_workers(d.world_size * ceil_div(rows, c.tile_rows), kGpuSms / 2);
  return c;
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
  SignalRef weighed = p.signal("weighed");  // by rank: tiles of my tokens that are there
  SignalRef done = p.signal("done");        // by rank: tiles of its sums that have read mine
  std::int64_t tiles = ceil_div(rows, tile_rows);

  p.role("weigh", Resource::sms(cfg.num_workers), p.range(ranks * tiles), [&](const Tile& t) {
    Index of = p.let("of", (p.rank() + t.index) % ranks);
    Index first = p.let("first", t.index / ranks * tile_rows);
    Index row = p.let("row", of * rows + first);
    Value sum = p.zeros(DType::kF32, tile_rows, d.hidden);
    Value exists = p.iota_rows(first, tile_rows) < p.splat(DType::kI32, rows);
    p.loop(d.top_k, [&](const Index& j) {
      Value slot = p.load(slots.tile({row, j}, tile_rows, 1));
      Value picked = where(exists, slot, p.splat(DType::kI32, -1));
      Value part = p.load_rows(y.tile({0, 0}, tile_rows, d.hidden), picked);
      sum = sum + cast(part, DType::kF32) * p.load(weights.tile({row, j}, tile_rows, 1));
    });
    p.store(parts.tile({of, first, 0}, tile_rows, d.hidden), cast(sum, d.dtype));
    p.notify(weighed, of);
  });
  p.role("sum", Resource::sms(cfg.num_workers), p.range(tiles), [&](const Tile& t) {
    Index row = p.let("row", t.index * tile_rows);
    Value exists = p.iota_rows(row, tile_rows) < p.splat(DType::kI32, own_rows);
    Value sum = p.zeros(DType::kF32, tile_rows, d.hidden);
    p.loop(ranks, [&](const Index& r) {
      p.wait(weighed[r], tiles);
      Value position = p.load(positions.tile({row, r}, tile_rows, 1));
      Value picked = where(exists, position, p.splat(DType::kI32, -1));
      auto mine = parts.on(r).tile({p.rank(), 0, 0}, tile_rows, d.hidden);
      Value part = p.load_rows(mine, picked);
      sum = sum + cast(part, DType::kF32);
    });
    p.notify_all(done);
    Value old = p.load(residual.tile({row, 0}, tile_rows, d.hidden));
    p.store(out.tile({row, 0}, tile_rows, d.hidden), cast(sum + cast(old, DType::kF32), d.dtype));
  });
  p.on_end([&] { p.loop(ranks, [&](const Index& r) { p.wait(done[r], tiles); }); });
  return p.finish();
}

}  // namespace stretto
