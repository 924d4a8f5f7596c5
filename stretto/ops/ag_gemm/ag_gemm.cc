#include "stretto/ops/ag_gemm/ag_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ops/ag_gemm/gather.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

void fit(const FieldFit& fields, const AgGemmDesc& d, AgGemmConfig& c) {
  if (c.gather != Gather::kPush || d.gathered) {
    fields.only("across", c.across, false,
                "tiles across the ranks' rows need gather = push, and gathered = false");
  }
  if (d.world_size == 1) return;
  if (c.gather == Gather::kPull) {
    fields.at_most("num_gather_workers", c.num_gather_workers, d.world_size - 1,
                   "a peer's rows come through one queue");
  }
  if (c.across) {
    fields.only("channels_per_rank", c.channels_per_rank, 1,
                "tiles across the ranks' rows wait for all of them");
    return;
  }
  fields.only("channels_per_rank", c.channels_per_rank,
              possible_channels({.m_bound = d.m,
                                 .world_size = d.world_size,
                                 .block_rows = c.comm_rows,
                                 .channels = c.channels_per_rank}),
              fmt::format("transfers of {} rows of {} ranks, as many to a channel", c.comm_rows,
                          d.world_size));
}

void check(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  check_product_sizes("ag_gemm", d, cfg);
  check_sizes("ag_gemm", {{"num_gather_workers", cfg.num_gather_workers},
                          {"comm_rows", cfg.comm_rows},
                          {"channels_per_rank", cfg.channels_per_rank},
                          {"num_consumers", cfg.loop.num_consumers},
                          {"cluster_size", cfg.loop.cluster_size}});
  check_factors("ag_gemm", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("ag_gemm", "c_dtype", d.c_dtype, d.a_dtype);
  AgGemmConfig will_run = cfg;
  fit(FieldFit::refusing(to_string(d)), d, will_run);
}

// SMs copy the own rows to where the peers' arrive: an engine's copy within a GPU the driver may
// make a kernel, for which this one leaves no room.
void keep_rows(ProgramBuilder& p, const AgGemmDesc& d, const Index& m, const Gathered::Part& part) {
  std::int64_t rows = std::clamp<std::int64_t>(most_copied_rows(1, d.k), 1, 32);
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = rows});
  p.role("keep", Resource::sms(keeping_sms(d)), p.range(runs.num_blocks()), [&](const Tile& t) {
    Index row = p.let("row", t.index * rows), end = runs.num_rows(p.rank());
    Index to = runs.first_row(p.rank()) + row;
    p.rank_copy_data(part.own.tile({row, 0}, rows, d.k).until_row(end),
                     part.full.tile({to, 0}, rows, d.k).until_row(runs.first_row(p.rank()) + end));
  });
}

}  // namespace

NamedFields fields_of(AgGemmDesc& d) {
  return joined(product_fields(d, d.c_dtype, "c={}"), {{"bias", d.bias},
                                                       {"swiglu", d.swiglu},
                                                       scaling_field(d.scaling),
                                                       weights_field(d.b_kn),
                                                       {"gathered", d.gathered}});
}

std::string to_string(const AgGemmDesc& d) { return "ag_gemm " + text_of(d); }

NamedFields fields_of(AgGemmConfig& c) {
  NamedFields fields =
      with_rest({tile_field(c.loop.tile),
                 {"compute", c.loop.num_compute_sms},
                 {"gather", c.gather, {Gather::kPull, Gather::kSend, Gather::kPush}},
                 {"workers", c.num_gather_workers},
                 {"comm_rows", c.comm_rows},
                 {"channels", c.channels_per_rank},
                 {"stages", c.loop.num_stages},
                 {"raster", c.loop.raster},
                 {"consumers", c.loop.num_consumers},
                 {"cluster", c.loop.cluster_size}},
                c.loop);
  fields.push_back({"across", c.across});
  return fields;
}

AgGemmConfig fitted(const AgGemmDesc& d, AgGemmConfig cfg) {
  fit(FieldFit::reducing(), d, cfg);
  return cfg;
}

int keeping_sms(const AgGemmDesc& d) { return d.gathered ? 4 : 0; }

namespace {

LinearDesc linear_desc(const AgGemmDesc& d) {
  return {.n = d.n,
          .k = d.k,
          .dtype = d.b_dtype,
          .bias = d.bias,
          .swiglu = d.swiglu,
          .scaling = d.scaling,
          .b_kn = d.b_kn};
}

Resource compute_sms(const AgGemmConfig& cfg) { return product_sms(cfg.loop); }

// Every rank writes its rows to every rank, and every tile waits for all of them, whether they have
// rows or not. So a rank that begins the launch after the next knows that all have ended this one,
// and two slots need no leave to be written.
Program across_ranks(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("ag_gemm", d.world_size);
  Index m = p.extent("m", d.m), own_rows = ceil_div(m, d.world_size);
  auto a = p.input("a", d.a_dtype, {own_rows, d.k});
  auto scale_a = scale_input(p, d.scaling, own_rows, d.k);  // of the own rows
  Linear linear(p, linear_desc(d));
  auto c = p.output("c", d.c_dtype, {m, d.n});  // [m, n]
  BufferOptions where{.space = Space::kSymmetric, .num_slots = 2};
  auto full = p.buffer("full", d.a_dtype, {m, d.k}, where);  // [m, k]
  std::vector<Gathered::Part> parts = {{a, full, d.k}};
  if (d.scaling != Scaling::kNone) {
    std::int64_t cols = scale_columns(d.scaling, d.k);
    parts.push_back({scale_a, p.buffer("full_scale", DType::kF32, {m, cols}, where), cols});
  }
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = cfg.comm_rows});
  auto arrived = p.signal("arrived");  // by owner: blocks of its rows

  p.role("push", Resource::sms(cfg.num_gather_workers),
         p.grid(d.world_size, runs.num_blocks(), 1, 1), [&](const Tile& t) {
           Index peer = p.let("peer", (p.rank() + d.world_size - 1 - t.m) % d.world_size);
           for (const Gathered::Part& part : parts) {
             Transfer rows = transfer(runs, part, p.rank(), t.n);
             p.put(rows.to.on(peer), rows.from);
           }
           p.notify(arrived, peer);
         });
  TileSpace tiles =
      p.grid(d.m, d.n, tile.bm, tile.bn).raster(cfg.loop.raster);  // all wait, rows or not
  p.role("gemm", compute_sms(cfg), tiles, [&](const Tile& t) {
    p.loop(d.world_size, [&](const Index& owner) { p.wait(arrived[owner], runs.num_blocks()); });
    p.when(t.row < m, [&] {
      TileRows rows = tile_rows(full, parts.back().full, tile, {.row = t.row});
      p.store(c.tile({t.row, t.col}, tile.bm, tile.bn),
              cast(linear.product(tile, t.col, rows), d.c_dtype));
    });
  });
  return p.finish();
}

}  // namespace

Program ag_gemm(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  check(d, cfg);
  if (cfg.across && d.world_size > 1) return across_ranks(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  bool push = cfg.gather != Gather::kPull, alone = d.world_size == 1;
  ProgramBuilder p("ag_gemm", d.world_size);
  Index m = p.extent("m", d.m);
  const Space fetched = push ? Space::kLocal : Space::kSymmetric;  // by peers, who else are sent it
  auto a = p.input("a", d.a_dtype, {ceil_div(m, d.world_size), d.k}, fetched);
  Index own_rows = ceil_div(m, d.world_size);
  auto scale_a = scale_input(p, d.scaling, own_rows, d.k, fetched);  // of the own rows
  Linear linear(p, linear_desc(d));
  auto c = p.output("c", d.c_dtype, {m, d.n});                             // [m, n]
  const Space space = push && !alone ? Space::kSymmetric : Space::kLocal;  // of peers' rows
  TensorRef gathered;
  if (d.gathered) gathered = p.output("gathered", d.a_dtype, {m, d.k}, space);  // [m, k]
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = tile.bm});
  std::optional<Gathered> g;
  if (!alone) {
    RowRuns transfers(m, {.m_bound = d.m,
                          .world_size = d.world_size,
                          .block_rows = cfg.comm_rows,
                          .channels = cfg.channels_per_rank});
    BufferOptions where{.space = space};
    auto full = d.gathered ? gathered : p.buffer("full", d.a_dtype, {m, d.k}, where);  // [m, k]
    auto arrived = p.signal("arrived", d.world_size * transfers.num_channels());
    g = Gathered{.world_size = d.world_size,
                 .parts = {{a, full, d.k}},
                 .transfers = transfers,
                 .arrived = arrived,
                 .ready = p.signal("ready")};
    if (d.scaling != Scaling::kNone) {
      std::int64_t scale_cols = scale_columns(d.scaling, d.k);
      auto full_scale = p.buffer("full_scale", DType::kF32, {m, scale_cols}, where);
      g->parts.push_back({scale_a, full_scale, scale_cols});
    }
    gather_rows(p, cfg.gather, cfg.num_gather_workers, *g);
  }
  if (d.gathered) keep_rows(p, d, m, {a, gathered, d.k});

  TileSpace tiles =
      p.grid(d.world_size * runs.num_blocks(), d.n, 1, tile.bn).raster(cfg.loop.raster);
  p.role("gemm", compute_sms(cfg), tiles, [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + t.m / runs.num_blocks()) % d.world_size);
    Index local_row = p.let("local_row", t.m % runs.num_blocks() * tile.bm);
    Index local_end = p.let("local_end", runs.num_rows(owner));
    Index first = p.let("first", runs.first_row(owner));
    p.when(local_row < local_end, [&] {
      Linear::Sums sums = linear.sums(tile, t.col);
      // Adds the product of x's rows from `row` to `end`, scaled by those of `scale`.
      auto multiply = [&](const TensorRef& x, const TensorRef& scale, const Index& row,
                          const Index& end) {
        linear.accumulate(sums, tile, t.col, tile_rows(x, scale, tile, {.row = row, .end = end}));
      };
      if (alone) {
        multiply(a, scale_a, local_row, local_end);
      } else {
        p.when(
            owner == p.rank(), [&] { multiply(a, scale_a, local_row, local_end); },
            [&] {
              wait_for_rows(p, *g, owner, local_row, tile.bm);
              multiply(g->parts.front().full, g->parts.back().full, first + local_row,
                       first + local_end);
            });
      }
      p.store(c.tile({first + local_row, t.col}, tile.bm, tile.bn).until_row(first + local_end),
              cast(linear.finish(std::move(sums), tile, t.col), d.c_dtype));
    });
  });
  return p.finish();
}

}  // namespace stretto
