#include "stretto/ops/gemm_ag/gemm_ag.h"

#include <fmt/format.h>

#include <functional>

namespace stretto {
namespace {

void check(const GemmAgDesc& d, const GemmAgConfig& cfg) {
  check_product_sizes("gemm_ag", d, cfg);
  check_factors("gemm_ag", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("gemm_ag", "c_dtype", d.c_dtype, d.a_dtype);
}

}  // namespace

NamedFields fields_of(GemmAgDesc& d) {
  return joined(product_fields(d, d.c_dtype, "c={}"),
                {{"bias", d.bias}, scaling_field(d.scaling), weights_field(d.b_kn)});
}

std::string to_string(const GemmAgDesc& d) { return "gemm_ag " + text_of(d); }

NamedFields fields_of(GemmAgConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"compute", c.loop.num_compute_sms},
                    {"stages", c.loop.num_stages},
                    {"raster", c.loop.raster}},
                   c.loop);
}

Program gemm_ag(const GemmAgDesc& d, const GemmAgConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  const std::int64_t world = d.world_size;
  ProgramBuilder p("gemm_ag", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, d.k});        // [m, k]
  auto scale_a = scale_input(p, d.scaling, m, d.k);  // [m, 1] or [m, k/128]
  Linear linear(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .bias = d.bias,
                    .scaling = d.scaling,
                    .b_kn = d.b_kn});
  auto c = p.output("c", d.c_dtype, {m, world * d.n}, Space::kSymmetric);  // [m, P * n]
  auto ready = p.signal("ready");                                          // c may be written
  auto stored = p.signal("stored");  // tiles, by who made them
  auto for_peers = [&](const std::function<void(const Index& rank)>& fn) {
    p.loop(world - 1, [&](const Index& i) { fn(p.let("peer", (p.rank() + 1 + i) % world)); });
  };

  p.on_start([&] { for_peers([&](const Index& peer) { p.notify(ready, peer); }); });
  TileSpace tiles = p.grid(d.m, d.n, tile.bm, tile.bn).raster(cfg.loop.raster);
  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    p.when(t.row < m, [&] {
      TileRows rows = tile_rows(a, scale_a, tile, {.row = t.row});
      Value made = cast(linear.product(tile, t.col, rows), d.c_dtype);
      Index first = p.let("first", p.rank() * d.n);
      Slice own = c.tile({t.row, first + t.col}, tile.bm, tile.bn);
      if (d.n % tile.bn != 0) own = own.until_col(first + d.n);  // what follows is the next rank's
      for_peers([&](const Index& peer) {
        p.wait(ready, peer);
        p.store(own.on(peer), made);
      });
      p.store(own, made);
    });
    // All stores are under way before the first notify waits for them.
    for_peers([&](const Index& peer) { p.notify(stored, peer); });
  });
  p.on_end([&] { for_peers([&](const Index& peer) { p.wait(stored[peer], tiles.count()); }); });
  return p.finish();
}

}  // namespace stretto
