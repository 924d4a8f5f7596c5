#include "stretto/ops/ag_gemm/ag_gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/gemm/row_runs.h"

namespace stretto {
namespace {

void check(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  check_sizes("ag_gemm", {{"world_size", d.world_size},
                          {"m", d.m},
                          {"n", d.n},
                          {"k", d.k},
                          {"tile.bm", cfg.tile.bm},
                          {"tile.bn", cfg.tile.bn},
                          {"tile.bk", cfg.tile.bk},
                          {"num_compute_sms", cfg.num_compute_sms},
                          {"num_gather_workers", cfg.num_gather_workers},
                          {"comm_rows", cfg.comm_rows},
                          {"channels_per_rank", cfg.channels_per_rank},
                          {"raster", cfg.raster}});
  check_dtype("ag_gemm", "a_dtype", d.a_dtype);
  check_dtype("ag_gemm", "b_dtype", d.b_dtype);
  check_dtype("ag_gemm", "c_dtype", d.c_dtype);
}

// What the gather roles work on. The map's tiles are comm_rows rows of one rank.
struct Gathered {
  TensorRef a;     // [ceil(m/P), k] this rank's rows
  TensorRef full;  // [m, k] all rows
  TileMapRef rows;
  SignalRef arrived;  // per channel of `rows`: its tiles that lie in `full`
  SignalRef ready;    // per rank: its rows may be read (pull), its `full` written (push)
};

// Zero SMs: copy engines fetch the ranks' rows, own rows first.
void pull_rows(ProgramBuilder& p, const AgGemmDesc& d, const AgGemmConfig& cfg, const Gathered& g) {
  auto done = p.signal("done");  // per rank: tiles of mine that it has read
  std::int64_t tiles_per_rank = g.rows.tiles().count().const_value() / d.world_size;

  p.role("gather", Resource::copy_engine(cfg.num_gather_workers),
         g.rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
           Index num_rows = t.row_end - t.row;
           p.wait(g.ready, t.owner);
           p.rank_copy_data(g.a.tile({t.local_row, 0}, cfg.comm_rows, d.k)
                                .on(t.owner)
                                .until_row(t.local_row + num_rows),
                            g.full.tile({t.row, 0}, cfg.comm_rows, d.k).until_row(t.row_end));
           p.producer_tile_notify(g.arrived, g.rows, t, NotifyMode::kLocal);
           p.notify(done, t.owner);
         });
  p.on_end([&] {  // the caller may overwrite its rows once every rank has read them
    p.loop(d.world_size, [&](const Index& peer) { p.wait(done[peer], tiles_per_rank); });
  });
}

// SMs write the own rows to every rank: first to itself, then to the rank that needs them next,
// which is the one before this.
void push_rows(ProgramBuilder& p, const AgGemmDesc& d, const AgGemmConfig& cfg, const Gathered& g) {
  RowRuns runs(g.full.dim(0),
               {.m_bound = d.m, .world_size = d.world_size, .block_rows = cfg.comm_rows});
  std::int64_t tiles_per_channel = ceil_div(runs.num_blocks(), cfg.channels_per_rank);
  Index first = runs.first_row(p.rank()), num_rows = runs.num_rows(p.rank());

  p.role("push", Resource::sms(cfg.num_gather_workers),
         p.grid(d.world_size, runs.num_blocks(), 1, 1), [&](const Tile& t) {
           Index peer = p.let("peer", (p.rank() + d.world_size - t.m) % d.world_size);
           Index local_row = p.let("local_row", t.n * cfg.comm_rows);
           p.wait(g.ready, peer);
           p.put(g.full.tile({first + local_row, 0}, cfg.comm_rows, d.k)
                     .on(peer)
                     .until_row(first + num_rows),
                 g.a.tile({local_row, 0}, cfg.comm_rows, d.k).until_row(num_rows));
           p.notify(g.arrived[p.rank() * cfg.channels_per_rank + t.n / tiles_per_channel], peer);
         });
}

}  // namespace

std::string to_string(const AgGemmDesc& d) {
  return fmt::format("ag_gemm P={} m={} n={} k={} a={} b={} c={}{}{}", d.world_size, d.m, d.n, d.k,
                     short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.c_dtype),
                     d.bias ? " bias" : "", d.swiglu ? " swiglu" : "");
}

std::string to_string(const AgGemmConfig& cfg) {
  return fmt::format(
      "tile={}x{}x{} compute={} gather={} workers={} comm_rows={} channels={} stages={} raster={}",
      cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.num_compute_sms,
      cfg.gather == Gather::kPull ? "pull" : "push", cfg.num_gather_workers, cfg.comm_rows,
      cfg.channels_per_rank, cfg.num_stages, cfg.raster);
}

AgGemmConfig default_config(const AgGemmDesc& d, Target target, Gather gather) {
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  if (target == Target::kCuda) {
    GpuLoop loop = gpu_loop(
        {.m = d.m, .n = d.n, .a_dtype = d.a_dtype, .b_dtype = d.b_dtype, .swiglu = d.swiglu});
    std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
    std::int64_t comm_rows =
        std::clamp<std::int64_t>(ceil_div(run_rows, std::int64_t{4}), 1, loop.tile.bm);
    // Copy queues are few, SMs that push are taken from the product.
    int workers =
        gpu_workers(ceil_div(run_rows, comm_rows) * d.world_size, gather == Gather::kPull ? 4 : 16);
    return {.tile = loop.tile,
            .num_compute_sms = gpu_workers(tiles, kGpuSms - workers),
            .gather = gather,
            .num_gather_workers = workers,
            .comm_rows = comm_rows,
            .channels_per_rank = std::clamp<std::int64_t>(run_rows / loop.tile.bm, 1, 8),
            .num_stages = loop.num_stages,
            .raster = 8};
  }
  return {.tile = default_tile(d.m, d.n, d.k),
          .gather = gather,
          .comm_rows = std::clamp<std::int64_t>(ceil_div(run_rows, std::int64_t{4}), 1, 256),
          .channels_per_rank = 2};
}

Program ag_gemm(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.tile;
  bool push = cfg.gather == Gather::kPush;
  ProgramBuilder p("ag_gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {ceil_div(m, d.world_size), d.k}, Space::kSymmetric);
  Linear linear(p, {.n = d.n, .k = d.k, .dtype = d.b_dtype, .bias = d.bias, .swiglu = d.swiglu});
  auto c = p.output("c", d.c_dtype, {m, d.n});  // [m, n]
  auto full = p.buffer("full", d.a_dtype, {m, d.k},
                       {.space = push ? Space::kSymmetric : Space::kLocal});  // [m, k]
  auto rows = p.tile_map("rows", full,
                         {.tile_rows = cfg.comm_rows, .channels_per_rank = cfg.channels_per_rank});
  auto arrived = p.signal("arrived", rows.channels());
  auto ready = p.signal("ready");
  Gathered gathered{a, full, rows, arrived, ready};

  p.on_start([&] { p.notify_all(ready); });
  push ? push_rows(p, d, cfg, gathered) : pull_rows(p, d, cfg, gathered);
  p.role("gemm", Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages),
         p.grid(c, tile.bm, tile.bn).raster(cfg.raster).rotate_rows(p.rank()), [&](const Tile& t) {
           p.consumer_tile_wait(arrived, rows, t.row, t.row + tile.bm);
           Value acc = linear.product(tile, t.col, [&](const Index& k) {
             return full.tile({t.row, k}, tile.bm, tile.bk);
           });
           p.store(c.tile({t.row, t.col}, tile.bm, tile.bn), cast(acc, d.c_dtype));
         });
  return p.finish();
}

}  // namespace stretto
