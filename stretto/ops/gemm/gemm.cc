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
  check_dtype("gemm", "a_dtype", d.a_dtype);
  check_dtype("gemm", "b_dtype", d.b_dtype);
  check_dtype("gemm", "c_dtype", d.c_dtype);
}

}  // namespace

std::string to_string(const GemmDesc& d) {
  return fmt::format("gemm P={} m={} n={} k={} a={} b={} c={}{}{}{}", d.world_size, d.m, d.n, d.k,
                     short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.c_dtype),
                     d.bias ? " bias" : "", d.swiglu ? " swiglu" : "",
                     d.residual ? " residual" : "");
}

std::string to_string(const GemmConfig& cfg) {
  return fmt::format("tile={}x{}x{} compute={} raster={} stages={} consumers={} cluster={}",
                     cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.num_compute_sms, cfg.raster,
                     cfg.num_stages, cfg.num_consumers, cfg.cluster_size);
}

GemmConfig default_config(const GemmDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile = default_tile(d.m, d.n, d.k)};
  GpuLoop loop = gpu_loop(
      {.m = d.m, .n = d.n, .a_dtype = d.a_dtype, .b_dtype = d.b_dtype, .swiglu = d.swiglu});
  std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  return {.tile = loop.tile,
          .num_compute_sms = gpu_workers(tiles),
          .raster = 8,
          .num_stages = loop.num_stages};
}

Program gemm(const GemmDesc& d, const GemmConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.tile;
  ProgramBuilder p("gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, d.k});  // [m, k]
  Linear linear(p, {.n = d.n, .k = d.k, .dtype = d.b_dtype, .bias = d.bias, .swiglu = d.swiglu});
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.c_dtype, {m, d.n});  // [m, n]
  auto c = p.output("c", d.c_dtype, {m, d.n});                          // [m, n]

  Resource sms = Resource::sms(cfg.num_compute_sms)
                     .pipelined(cfg.num_stages)
                     .in_turn(cfg.num_consumers)
                     .clustered(cfg.cluster_size);
  p.role("gemm", sms, p.grid(c, tile.bm, tile.bn).raster(cfg.raster), [&](const Tile& t) {
    Value acc = linear.product(tile, t.col, [&](const Index& k) {
      return a.tile({t.row, k}, tile.bm, tile.bk);
    });
    if (d.residual) {
      acc = acc + cast(p.load(residual.tile({t.row, t.col}, tile.bm, tile.bn)), DType::kF32);
    }
    p.store(c.tile({t.row, t.col}, tile.bm, tile.bn), cast(acc, d.c_dtype));
  });
  return p.finish();
}

}  // namespace stretto
