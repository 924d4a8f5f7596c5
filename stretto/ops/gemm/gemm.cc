#include "stretto/ops/gemm/gemm.h"

#include <fmt/format.h>

namespace stretto {
namespace {

void check(const GemmDesc& d, const GemmConfig& cfg) {
  check_sizes("gemm", {{"world_size", d.world_size},
                       {"m", d.m},
                       {"n", d.n},
                       {"k", d.k},
                       {"tile.bm", cfg.tile.bm},
                       {"tile.bn", cfg.tile.bn},
                       {"tile.bk", cfg.tile.bk},
                       {"num_compute_sms", cfg.num_compute_sms},
                       {"raster", cfg.raster}});
  check_factors("gemm", {d.a_dtype, d.b_dtype, d.scaling, cfg.tile});
  check_dtype("gemm", "c_dtype", d.c_dtype);
}

}  // namespace

std::string to_string(const GemmDesc& d) {
  return fmt::format("gemm P={} m={} n={} k={} a={} b={} c={}{}{}{}{}", d.world_size, d.m, d.n, d.k,
                     short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.c_dtype),
                     d.bias ? " bias" : "", d.swiglu ? " swiglu" : "",
                     d.residual ? " residual" : "", scaling_text(d.scaling));
}

std::string to_string(const GemmConfig& cfg) {
  return fmt::format("tile={}x{}x{} compute={} raster={} stages={} consumers={} cluster={}",
                     cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.num_compute_sms, cfg.raster,
                     cfg.num_stages, cfg.num_consumers, cfg.cluster_size);
}

GemmConfig default_config(const GemmDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling)};
  GpuLoop loop = gpu_loop({.m = d.m,
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype,
                           .swiglu = d.swiglu,
                           .scaling = d.scaling});
  // Products of bytes need their factors twice as fast: pairs of blocks share those of the weights,
  // where TMA loads them and there are rows enough.
  bool bytes = d.a_dtype == DType::kF8E4M3 && d.k % 16 == 0;
  std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  int cluster = bytes && d.m > loop.tile.bm && tiles >= kGpuSms ? 2 : 1;
  loop.tile.bm *= cluster;
  return {.tile = loop.tile,
          .num_compute_sms = gpu_workers(tiles / cluster, kGpuSms / cluster),
          .raster = 8,
          .num_stages = loop.num_stages,
          .cluster_size = cluster};
}

Program gemm(const GemmDesc& d, const GemmConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.tile;
  ProgramBuilder p("gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, d.k});  // [m, k]
  Linear linear(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .bias = d.bias,
                    .swiglu = d.swiglu,
                    .scaling = d.scaling});
  auto scale_a = scale_input(p, d.scaling, m, d.k);  // [m, 1] or [m, k/128]
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.c_dtype, {m, d.n});  // [m, n]
  auto c = p.output("c", d.c_dtype, {m, d.n});                          // [m, n]

  Resource sms = Resource::sms(cfg.num_compute_sms)
                     .pipelined(cfg.num_stages)
                     .in_turn(cfg.num_consumers)
                     .clustered(cfg.cluster_size);
  p.role("gemm", sms, p.grid(c, tile.bm, tile.bn).raster(cfg.raster), [&](const Tile& t) {
    Value acc = linear.product(tile, t.col, tile_rows(a, scale_a, tile, {.row = t.row}));
    if (d.residual) {
      acc = acc + cast(p.load(residual.tile({t.row, t.col}, tile.bm, tile.bn)), DType::kF32);
    }
    p.store(c.tile({t.row, t.col}, tile.bm, tile.bn), cast(acc, d.c_dtype));
  });
  return p.finish();
}

}  // namespace stretto
