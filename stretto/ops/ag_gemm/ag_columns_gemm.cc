#include "stretto/ops/ag_gemm/ag_columns_gemm.h"

#include <fmt/format.h>

#include <optional>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

std::int64_t own_columns(const AgColumnsDesc& d) { return d.k / d.world_size; }

void check(const AgColumnsDesc& d, const AgColumnsConfig& cfg) {
  check_product_sizes("ag_columns_gemm", d, cfg);
  check_sizes("ag_columns_gemm", {{"num_gather_workers", cfg.num_gather_workers},
                                  {"comm_rows", cfg.comm_rows},
                                  {"comm_group", cfg.comm_group}});
  check_factors("ag_columns_gemm", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("ag_columns_gemm", "c_dtype", d.c_dtype, d.a_dtype);
  const bool blocks = d.scaling == Scaling::kBlock && d.world_size > 1;
  const std::int64_t of_rank = blocks ? kScaleBlock : 1;
  if (d.k % (d.world_size * of_rank) != 0) {
    throw UserError(fmt::format("ag_columns_gemm: k is {}, need a multiple of {} for {} ranks{}",
                                d.k, d.world_size * of_rank, d.world_size,
                                blocks ? " with scales of blocks" : ""));
  }
  if (cfg.gather == Gather::kPull) {
    throw UserError("ag_columns_gemm: gather is pull, can only be send or push");
  }
}

// Which rows of a tile lie where.
TileRows rows_of(const TensorRef& a, const TensorRef& scale, const GemmTile& tile,
                 const Index& first, const Index& row, const Index& m) {
  return tile_rows(a, scale, tile, {.row = first + row, .end = first + m});
}

}  // namespace

NamedFields fields_of(AgColumnsDesc& d) {
  return joined(product_fields(d, d.c_dtype, "c={}"),
                {{"bias", d.bias}, scaling_field(d.scaling), weights_field(d.b_kn)});
}

std::string to_string(const AgColumnsDesc& d) { return "ag_columns_gemm " + text_of(d); }

NamedFields fields_of(AgColumnsConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"compute", c.loop.num_compute_sms},
                    {"gather", c.gather, {Gather::kPull, Gather::kSend, Gather::kPush}},
                    {"workers", c.num_gather_workers},
                    {"comm_rows", c.comm_rows},
                    {"group", c.comm_group},
                    {"stages", c.loop.num_stages},
                    {"raster", c.loop.raster}},
                   c.loop);
}

Program ag_columns_gemm(const AgColumnsDesc& d, const AgColumnsConfig& cfg) {
  check(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  const std::int64_t world = d.world_size, cols = own_columns(d);
  ProgramBuilder p("ag_columns_gemm", d.world_size);
  Index m = p.extent("m", d.m);
  auto a = p.input("a", d.a_dtype, {m, cols});        // [m, k/P]
  auto scale_a = scale_input(p, d.scaling, m, cols);  // [m, 1] or [m, k/P/128]
  Linear linear(p, {.n = d.n,
                    .k = d.k,
                    .dtype = d.b_dtype,
                    .bias = d.bias,
                    .scaling = d.scaling,
                    .b_kn = d.b_kn});
  auto c = p.output("c", d.c_dtype, {m, d.n});  // [m, n]
  std::optional<Gathered> g;
  if (world > 1) {
    BufferOptions where{.space = Space::kSymmetric};
    auto full = p.buffer("full", d.a_dtype, {m * world, cols}, where);  // [P * m, k/P]
    RowRuns transfers(m, {.m_bound = d.m,
                          .world_size = d.world_size,
                          .block_rows = cfg.comm_rows,
                          .channels = ceil_div(d.m, cfg.comm_rows),
                          .all_rows = true});
    g = Gathered{.world_size = d.world_size,
                 .parts = {{a, full, cols}},
                 .transfers = transfers,
                 .arrived = p.signal("arrived", world * transfers.num_channels()),
                 .ready = p.signal("ready")};
    if (d.scaling != Scaling::kNone) {
      std::int64_t of_row = scale_columns(d.scaling, cols);
      auto full_scale = p.buffer("full_scale", DType::kF32, {m * world, of_row}, where);
      g->parts.push_back({scale_a, full_scale, of_row});
    }
    gather_groups(p, cfg.gather, cfg.num_gather_workers, cfg.comm_group, *g);
  }

  TileSpace tiles = p.grid(d.m, d.n, tile.bm, tile.bn).raster(cfg.loop.raster);
  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, tiles, [&](const Tile& t) {
    p.when(t.row < m, [&] {
      Linear::Sums sums = linear.sums(tile, t.col);
      // Adds the product of that rank's columns, scaled by its scales of rows.
      auto add = [&](const Index& source, const TileRows& rows) {
        const ColumnRange columns{source * cols, cols};
        if (d.scaling != Scaling::kRowWise) {
          linear.accumulate(sums, tile, t.col, rows, columns);
          return;
        }
        Linear::Sums of_source = linear.sums(tile, t.col);
        linear.accumulate(of_source, tile, t.col, rows, columns);
        for (std::size_t i = 0; i < sums.of.size(); ++i) {
          sums.of[i] = sums.of[i] + of_source.of[i];
        }
      };
      add(p.rank(), rows_of(a, scale_a, tile, 0, t.row, m));
      if (world > 1) {
        p.loop(1, world, [&](const Index& i) {
          Index source = p.let("source", (p.rank() + i) % world);
          wait_for_rows(p, *g, source, t.row, tile.bm);
          add(source,
              rows_of(g->parts.front().full, g->parts.back().full, tile, source * m, t.row, m));
        });
      }
      p.store(c.tile({t.row, t.col}, tile.bm, tile.bn),
              cast(linear.finish(std::move(sums), tile, t.col), d.c_dtype));
    });
  });
  return p.finish();
}

}  // namespace stretto
