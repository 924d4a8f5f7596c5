#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {
namespace {

void check_a2a_gemm(const UlyssesDesc& d, const UlyssesConfig& cfg) {
  check_product_sizes("a2a_gemm", d, cfg);
  check_sizes("a2a_gemm", {{"comm_rows", cfg.comm_rows}, {"num_queues", cfg.num_queues}});
  check_dtype("a2a_gemm", "dtype", d.dtype);
  check_dtype("a2a_gemm", "weight_dtype", d.weight_dtype);
  if (cfg.comm_rows % cfg.loop.tile.bm != 0) {
    throw UserError(fmt::format("a2a_gemm: comm_rows is {}, need a multiple of tile.bm, {}",
                                cfg.comm_rows, cfg.loop.tile.bm));
  }
  if (d.k % (d.world_size * cfg.loop.tile.bk) != 0) {
    throw UserError(
        fmt::format("a2a_gemm: k is {}, need a multiple of tile.bk, {}, on each of {} "
                    "ranks",
                    d.k, cfg.loop.tile.bk, d.world_size));
  }
}

}  // namespace

std::int64_t copied_rows(const UlyssesDesc& d, std::int64_t bm, std::int64_t rows) {
  std::int64_t most = most_copied_rows(1, d.k / d.world_size) / bm;
  return std::clamp<std::int64_t>(ceil_div(rows, bm), 1, std::max<std::int64_t>(most, 1)) * bm;
}

Program a2a_gemm(const UlyssesDesc& d, const UlyssesConfig& cfg) {
  check_a2a_gemm(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  const std::int64_t world = d.world_size, cols = d.k / world;
  ProgramBuilder p("a2a_gemm", d.world_size);
  Index m = p.extent("m", d.m);
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = tile.bm});
  RowRuns copies(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = cfg.comm_rows});
  const Index& run_rows = runs.run_rows();
  auto a = p.input("a", d.dtype, {m, cols});  // [m, k/P]
  Linear linear(p, {.n = d.n, .k = d.k, .dtype = d.weight_dtype, .bias = d.bias});
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.dtype, {run_rows, d.n});  // [m/P, n]
  auto c = p.output("c", d.dtype, {run_rows, d.n});                          // [m/P, n]
  TensorRef full;     // [P * m/P, k/P]: the own tokens of each rank's heads
  SignalRef ready;    // `full` may be written
  SignalRef arrived;  // by source and copy
  if (world > 1) {
    full = p.buffer("full", d.dtype, {run_rows * world, cols}, {.space = Space::kSymmetric});
    ready = p.signal("ready");
    arrived = p.signal("arrived", world * copies.num_blocks());
    p.on_start([&] {
      p.loop(world - 1, [&](const Index& i) { p.notify(ready, (p.rank() + 1 + i) % world); });
    });
    // The first rows of every rank before the next ones; to the rank before this one first, which
    // needs them next.
    p.role("send", Resource::copy_engine(cfg.num_queues),
           p.range(copies.num_blocks() * (world - 1)), [&](const Tile& t) {
             Index block = p.let("block", t.index / (world - 1));
             Index peer = p.let("peer", (p.rank() + world - 1 - t.index % (world - 1)) % world);
             Index rows = copies.num_rows(peer);
             auto part = [&](const TensorRef& tensor, const Index& first) {
               return tensor.tile({first + block * cfg.comm_rows, 0}, cfg.comm_rows, cols)
                   .until_row(first + rows);
             };
             p.wait(ready, peer);
             p.put(part(full, p.rank() * run_rows).on(peer), part(a, runs.first_row(peer)));
             p.notify(arrived[p.rank() * copies.num_blocks() + block], peer);
           });
  }

  TileSpace tiles = p.grid(runs.num_blocks(), d.n, 1, tile.bn).raster(cfg.loop.raster);
  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    Index row = p.let("row", t.m * tile.bm);
    Index end = p.let("end", runs.num_rows(p.rank()));
    // Rows of `c`, from `first` up to `last`.
    auto finish = [&](Linear::Sums sums, const GemmTile& of, const Index& first,
                      const Index& last) {
      Value sum = linear.finish(std::move(sums), of, t.col);
      if (d.residual) {
        sum = sum + cast(p.load(residual.tile({first, t.col}, of.bm, of.bn)), sum.dtype());
      }
      p.store(c.tile({first, t.col}, of.bm, of.bn).until_row(last), cast(sum, d.dtype));
    };
    // Loads and the store have one end, so that nobody sees the rows behind it, and no step makes
    // them zero (passes/unseen_rows.h).
    p.when(row < run_rows, [&] {
      Linear::Sums sums = linear.sums(tile, t.col);
      auto add = [&](const Index& source, const TensorRef& x, const Index& first) {
        std::int64_t steps = cols / tile.bk;
        TileRows rows{.a =
                          [&](const Index& k) {
                            return x.tile({first + row, k - source * cols}, tile.bm, tile.bk)
                                .until_row(first + end);
                          },
                      .scale = {}};
        linear.accumulate(sums, tile, t.col, rows, StepRange{source * steps, (source + 1) * steps});
      };
      add(p.rank(), a, runs.first_row(p.rank()));
      if (world > 1) {
        p.loop(1, world, [&](const Index& i) {
          Index source = p.let("source", (p.rank() + i) % world);
          p.wait(arrived[source * copies.num_blocks() + row / cfg.comm_rows], 1);
          add(source, full, source * run_rows);
        });
      }
      finish(std::move(sums), tile, row, end);
    });
    if (world == 1) return;
    // Padding is written, too, the bias and the residual: fewer rows than ranks, all by the first
    // row's tile, which is known without the sizes (a proof of one in which padding begins takes as
    // many cases as there are tiles).
    GemmTile padding = tile;
    padding.bm = world - 1;
    p.when(t.m == 0 && end < run_rows,
           [&] { finish(linear.sums(padding, t.col), padding, end, run_rows); });
  });
  return p.finish();
}

}  // namespace stretto
