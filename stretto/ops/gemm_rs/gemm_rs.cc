#include "stretto/ops/gemm_rs/gemm_rs.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm_rs/partial_sums.h"

namespace stretto {
namespace {

void check(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  check_sizes("gemm_rs", {{"world_size", d.world_size},
                          {"m", d.m},
                          {"n", d.n},
                          {"k", d.k},
                          {"tile.bm", cfg.tile.bm},
                          {"tile.bn", cfg.tile.bn},
                          {"tile.bk", cfg.tile.bk},
                          {"num_compute_sms", cfg.num_compute_sms},
                          {"num_copy_queues", cfg.num_copy_queues},
                          {"channels_per_rank", cfg.channels_per_rank},
                          {"num_slots", cfg.num_slots},
                          {"raster", cfg.raster}});
  check_sizes("gemm_rs", {{"num_reduce_sms", cfg.num_reduce_sms}}, 0);
  check_factors("gemm_rs", {d.a_dtype, d.b_dtype, d.scaling, cfg.tile});
  check_result("gemm_rs", "out_dtype", d.out_dtype, d.a_dtype);
}

}  // namespace

std::string to_string(const GemmRsDesc& d) {
  return fmt::format("gemm_rs P={} m={} n={} k={} a={} b={} out={}{}{}", d.world_size, d.m, d.n,
                     d.k, short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.out_dtype),
                     d.residual ? " residual" : "", scaling_text(d.scaling));
}

std::string to_string(const GemmRsConfig& cfg) {
  return fmt::format(
      "tile={}x{}x{} compute={} reduce={} scatter={} queues={} channels={} slots={} "
      "stages={} raster={}",
      cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.num_compute_sms, cfg.num_reduce_sms,
      cfg.scatter == Scatter::kEpilogue ? "epilogue" : "copy_engine", cfg.num_copy_queues,
      cfg.channels_per_rank, cfg.num_slots, cfg.num_stages, cfg.raster);
}

GemmRsConfig default_config(const GemmRsDesc& d, Target target) {
  // Tiles do not cross from one rank's rows into the next rank's: they are cut from a run of rows,
  // into at least two blocks, so that one can travel while the other is multiplied.
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  if (target == Target::kCuda) {
    GpuLoop loop = gpu_loop({.m = run_rows,
                             .n = d.n,
                             .k = d.k,
                             .a_dtype = d.a_dtype,
                             .b_dtype = d.b_dtype,
                             .scaling = d.scaling});
    std::int64_t blocks = ceil_div(run_rows, loop.tile.bm);
    std::int64_t tiles = blocks * ceil_div(d.n, loop.tile.bn) * d.world_size;
    GemmRsConfig cfg{.tile = loop.tile,
                     .num_compute_sms = gpu_workers(tiles),
                     .num_reduce_sms = 0,
                     .channels_per_rank = std::max<std::int64_t>(blocks, 1),
                     .num_stages = loop.num_stages,
                     .raster = 8};
    // Tiles that all SMs store at once fill the link, and the SMs wait for it; a copy engine costs
    // one SM, which rings for it, and pays from several waves of tiles on (docs/performance.md).
    std::int64_t channels = least_channels(run_rows, loop.tile.bm, d.n);
    if (tiles < 6 * kGpuSms || channels == 0) return cfg;
    cfg.scatter = Scatter::kCopyEngine;
    cfg.num_compute_sms = kGpuSms - 1;
    cfg.channels_per_rank = std::max(std::min<std::int64_t>(blocks, 4), channels);
    cfg.num_slots = 1;
    return cfg;
  }
  GemmTile tile = scaled_tile(default_tile(run_rows, d.n, d.k), d.scaling);
  if (run_rows > 8) tile.bm = std::min(tile.bm, ceil_div(run_rows, std::int64_t{16}) * 8);
  return {.tile = tile, .channels_per_rank = 2};
}

Program gemm_rs(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.tile;
  ProgramBuilder p("gemm_rs", d.world_size);
  PartialSums partials(p, d, cfg);  // m; a [m, k], b [n, k]
  const Index& run_rows = partials.run_rows();
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.out_dtype, {run_rows, d.n});  // [m/P, n]
  auto out = p.output("out", d.out_dtype, {run_rows, d.n});                      // [m/P, n]

  p.on_start([&] { partials.announce(); });
  partials.run([&](const PartialSums::OwnTile& t, Value sum) {
    if (d.residual) {
      Slice rows = residual.tile({t.row, t.col}, tile.bm, tile.bn);
      sum = sum + cast(p.load(rows.until_row(partials.own_rows())), sum.dtype());
    }
    p.store(out.tile({t.row, t.col}, tile.bm, tile.bn), cast(sum, d.out_dtype));
  });
  return p.finish();
}

}  // namespace stretto
