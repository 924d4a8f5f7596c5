#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/operator/field_fit.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto {
namespace {

void check_gemm_a2a(const UlyssesDesc& d, const UlyssesConfig& cfg) {
  check_product_sizes("gemm_a2a", d, cfg);
  check_dtype("gemm_a2a", "dtype", d.dtype);
  check_dtype("gemm_a2a", "weight_dtype", d.weight_dtype);
  if (d.residual) throw UserError("gemm_a2a: residual is for a2a_gemm");
  auto fields = FieldFit::refusing("gemm_a2a " + to_string(d));
  UlyssesConfig will_run = cfg;
  fields.only("comm_rows", will_run.comm_rows, 0, "SMs store tiles, and no engine copies rows");
  fields.only("num_queues", will_run.num_queues, 1, "SMs store tiles, and no engine copies rows");
  if (d.n % d.world_size != 0) {
    throw UserError(
        fmt::format("gemm_a2a: n is {}, need a multiple of {} ranks", d.n, d.world_size));
  }
}

}  // namespace

NamedFields fields_of(UlyssesDesc& d) {
  return {{"m", d.m},
          {"n", d.n},
          {"k", d.k},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("weight_dtype", d.weight_dtype).as("b={}"),
          {"bias", d.bias},
          {"residual", d.residual},
          NamedField("world_size", d.world_size).as("P={}")};
}

NamedFields fields_of(UlyssesConfig& c) {
  std::optional<int> no_copies;  // and no queues then
  if (c.comm_rows == 0) no_copies = 1;
  NamedFields fields = with_rest({tile_field(c.loop.tile),
                                  {"compute", c.loop.num_compute_sms},
                                  {"stages", c.loop.num_stages},
                                  {"raster", c.loop.raster}},
                                 c.loop);
  fields.push_back({"comm_rows", c.comm_rows, 0});
  fields.push_back({"queues", c.num_queues, no_copies});
  return fields;
}

Program gemm_a2a(const UlyssesDesc& d, const UlyssesConfig& cfg) {
  check_gemm_a2a(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  std::int64_t cols = d.n / d.world_size;
  ProgramBuilder p("gemm_a2a", d.world_size);
  Index m = p.extent("m", d.m);
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = tile.bm});
  auto a = p.input("a", d.dtype, {runs.run_rows(), d.k});  // [m/P, k]
  Linear linear(p, {.n = d.n, .k = d.k, .dtype = d.weight_dtype, .bias = d.bias});
  auto c = p.output("c", d.dtype, {m, cols}, Space::kSymmetric);  // [m, n/P]
  auto ready = p.signal("ready");                                 // c may be written
  auto stored = p.signal("stored");                               // tiles of c, by who made them
  std::int64_t peers = std::max(d.world_size - 1, 1);
  p.on_start([&] {
    p.loop(d.world_size - 1,
           [&](const Index& i) { p.notify(ready, (p.rank() + 1 + i) % d.world_size); });
  });

  TileSpace tiles =
      p.grid(d.world_size * runs.num_blocks(), cols, 1, tile.bn).raster(cfg.loop.raster);
  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    Index offset = p.let("offset", t.m / runs.num_blocks());
    Index owner = p.let("owner", (p.rank() + 1 + offset) % d.world_size);
    Index row = p.let("row", t.m % runs.num_blocks() * tile.bm);
    Index end = p.let("end", runs.num_rows(p.rank()));
    p.when(row < end, [&] {
      TileRows rows = tile_rows(a, {}, tile, {.row = row, .end = end});
      Value sum = linear.product(tile, owner * cols + t.col, rows);
      Index first = p.let("first", runs.first_row(p.rank()));
      p.when(offset < d.world_size - 1, [&] { p.wait(ready, owner); });
      p.store(c.on(owner).tile({first + row, t.col}, tile.bm, tile.bn).until_row(first + end),
              cast(sum, d.dtype));
    });
    p.when(offset < d.world_size - 1, [&] { p.notify(stored, owner); });
  });
  if (d.world_size == 1) return p.finish();
  p.on_end([&] {
    p.loop(peers, [&](const Index& i) {
      p.wait(stored[(p.rank() + 1 + i) % d.world_size],
             runs.num_blocks() * ceil_div(cols, tile.bn));
    });
  });
  return p.finish();
}

}  // namespace stretto
