#include "stretto/ops/gemm/gemm.h"

#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/k_parts.h"

namespace stretto {
namespace {

void check(const GemmDesc& d, const GemmConfig& cfg) {
  check_product_sizes("gemm", d, cfg);
  check_sizes("gemm", {{"split_k", cfg.split_k}});
  check_k_parts("gemm", d.k, cfg.loop.tile, cfg.split_k);
  if (cfg.swap_ab && (d.bias || d.swiglu || d.residual || d.scaling != Scaling::kNone)) {
    throw UserError("gemm: swap_ab is for products without bias, swiglu, residual and scaling");
  }
  check_factors("gemm", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("gemm", "c_dtype", d.c_dtype, d.a_dtype);
}

}  // namespace

NamedFields fields_of(GemmDesc& d) {
  return joined(product_fields(d, d.c_dtype, "c={}"), {{"bias", d.bias},
                                                       {"swiglu", d.swiglu},
                                                       {"residual", d.residual},
                                                       scaling_field(d.scaling),
                                                       weights_field(d.b_kn)});
}

std::string to_string(const GemmDesc& d) { return "gemm " + text_of(d); }

NamedFields fields_of(GemmConfig& c) {
  NamedFields fields = with_rest({tile_field(c.loop.tile),
                                  {"compute", c.loop.num_compute_sms},
                                  {"raster", c.loop.raster},
                                  {"stages", c.loop.num_stages},
                                  {"consumers", c.loop.num_consumers},
                                  {"cluster", c.loop.cluster_size}},
                                 c.loop);
  fields.push_back({"split_k", c.split_k, 1});
  fields.push_back({"swap_ab", c.swap_ab});
  return fields;
}

Program gemm(const GemmDesc& d, const GemmConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, d.k});  // [m, k]
  Linear linear(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .bias = d.bias,
                    .swiglu = d.swiglu,
                    .scaling = d.scaling,
                    .b_kn = d.b_kn,
                    .swap_ab = cfg.swap_ab});
  auto scale_a = scale_input(p, d.scaling, m, d.k);  // [m, 1] or [m, k/128]
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.c_dtype, {m, d.n});  // [m, n]
  auto c = p.output("c", d.c_dtype, {m, d.n});                          // [m, n]

  Resource sms = product_sms(cfg.loop);
  auto finish = [&](Value acc, const Index& row, const Index& col) {
    if (d.residual) {
      acc = acc + cast(p.load(residual.tile({row, col}, tile.bm, tile.bn)), acc.dtype());
    }
    Value rounded = cast(acc, d.c_dtype);
    p.store(c.tile({row, col}, tile.bm, tile.bn), cfg.swap_ab ? rounded.T() : rounded);
  };
  if (cfg.split_k == 1) {
    p.role("gemm", sms, p.grid(c, tile.bm, tile.bn).raster(cfg.loop.raster), [&](const Tile& t) {
      TileRows rows = tile_rows(a, scale_a, tile, {.row = t.row});
      finish(linear.product(tile, t.col, rows), t.row, t.col);
    });
    return p.finish();
  }
  KParts parts(p,
               {.m = d.m,
                .n = d.n,
                .k = d.k,
                .tile = tile,
                .parts = cfg.split_k,
                .raster = cfg.loop.raster,
                .sum = sum_dtype(d.b_dtype),
                .num_weights = d.swiglu ? 2 : 1,
                .swap_ab = cfg.swap_ab},
               m);
  p.role("gemm", sms, parts.tiles(), [&](const Tile& t) {
    KParts::Part part = parts.part_of(t);
    Linear::Sums sums = linear.sums(tile, t.col);
    TileRows rows = tile_rows(a, scale_a, tile, {.row = part.row});
    linear.accumulate(sums, tile, t.col, rows, part.steps);
    parts.add_up(part, sums,
                 [&] { finish(linear.finish(std::move(sums), tile, t.col), part.row, t.col); });
  });
  return p.finish();
}

}  // namespace stretto
