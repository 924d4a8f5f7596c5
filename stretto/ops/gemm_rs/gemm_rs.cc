#include "stretto/ops/gemm_rs/gemm_rs.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/gemm_rs/partial_sums.h"
#include "stretto/ops/operator/field_fit.h"
#include "stretto/ops/operator/rank_sum.h"

namespace stretto {
namespace {

void fit(const FieldFit& fields, const GemmRsDesc& d, GemmRsConfig& c) {
  bool engine = c.scatter == Scatter::kCopyEngine, epilogue = c.num_reduce_sms == 0;
  if (engine || !epilogue || c.num_slots != 2) {
    fields.only("across", c.across, false,
                "tiles across the ranks' rows are scattered and summed in the epilogue, through "
                "two slots");
  }
  if (!engine || !epilogue || c.loop.num_stages == 0) {
    fields.only("load_slots", c.loop.load_slots, 0,
                "loads ahead need stages, copy engines and sums in the epilogue");
  }
  if (d.world_size == 1) return;
  if (!engine) {
    fields.only("num_copy_queues", c.num_copy_queues, 1, "the epilogue scatters");
  }
  if (c.across) {
    const char* reason = "tiles reach across the ranks' rows, and who multiplies stores them";
    fields.only("store_slots", c.loop.store_slots, 0, reason);
    fields.only("channels_per_rank", c.channels_per_rank, 1, reason);
    return;
  }
  RowRunsOptions rows{.m_bound = d.m,
                      .world_size = d.world_size,
                      .block_rows = c.loop.tile.bm,
                      .channels = c.channels_per_rank};
  std::string tiles = fmt::format("tiles of {} rows of {} ranks, ", c.loop.tile.bm, d.world_size);
  fields.only("channels_per_rank", c.channels_per_rank, possible_channels(rows),
              tiles + "as many to a channel");
  // Row tiles that share a column must be of one owner: own tiles that came before others' would
  // wait for ranks that wait in the same way.
  std::int64_t blocks = std::max<std::int64_t>(num_blocks(rows), 1);
  std::int64_t shared = std::min(c.loop.raster, blocks);
  while (blocks % shared != 0) --shared;
  if (shared != blocks) {
    fields.only("raster", c.loop.raster, shared, fmt::format("{}{} of one", tiles, blocks));
  }
}

void check(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  check_product_sizes("gemm_rs", d, cfg);
  check_sizes("gemm_rs", {{"num_copy_queues", cfg.num_copy_queues},
                          {"channels_per_rank", cfg.channels_per_rank},
                          {"num_slots", cfg.num_slots}});
  check_sizes("gemm_rs", {{"num_reduce_sms", cfg.num_reduce_sms}}, 0);
  check_sizes("gemm_rs", {{"load_slots", cfg.loop.load_slots}}, 0);
  check_factors("gemm_rs", {d.a_dtype, d.b_dtype, d.scaling, cfg.loop.tile, d.b_kn});
  check_result("gemm_rs", "out_dtype", d.out_dtype, d.a_dtype);
  GemmRsConfig will_run = cfg;
  fit(FieldFit::refusing(to_string(d)), d, will_run);
}

Value averaged(const GemmRsDesc& d, const Value& sum) {
  return d.average && d.world_size > 1 ? sum * (1.0 / d.world_size) : sum;
}

}  // namespace

const char* name(Scatter scatter) {
  return scatter == Scatter::kEpilogue ? "epilogue" : "copy_engine";
}

NamedFields fields_of(GemmRsDesc& d) {
  return joined(product_fields(d, d.out_dtype, "out={}"), {{"average", d.average},
                                                           {"residual", d.residual},
                                                           scaling_field(d.scaling),
                                                           weights_field(d.b_kn)});
}

std::string to_string(const GemmRsDesc& d) { return "gemm_rs " + text_of(d); }

NamedFields fields_of(GemmRsConfig& c) {
  NamedFields fields =
      with_rest({tile_field(c.loop.tile),
                 {"compute", c.loop.num_compute_sms},
                 {"reduce", c.num_reduce_sms},
                 {"scatter", c.scatter, {Scatter::kEpilogue, Scatter::kCopyEngine}},
                 {"queues", c.num_copy_queues},
                 {"channels", c.channels_per_rank},
                 {"slots", c.num_slots},
                 {"stages", c.loop.num_stages},
                 {"raster", c.loop.raster}},
                c.loop);
  fields.push_back({"across", c.across});
  return fields;
}

GemmRsConfig fitted(const GemmRsDesc& d, GemmRsConfig cfg) {
  fit(FieldFit::reducing(), d, cfg);
  return cfg;
}

namespace {

// Of every tile each rank gets its own rows from all others and adds them to what it has of them in
// registers. All wait for each other in every tile, so two slots are enough (gemm_rs.h).
Program across_ranks(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm_rs", d.world_size);
  Index m = p.extent("m", d.m);
  RowRuns runs(m, {.m_bound = d.m, .world_size = d.world_size, .block_rows = tile.bm});
  auto a = p.input("a", d.a_dtype, {m, d.k});  // [m, k]
  Linear linear(p, {.n = d.n, .k = d.k, .dtype = d.b_dtype, .scaling = d.scaling, .b_kn = d.b_kn});
  auto scale_a = scale_input(p, d.scaling, m, d.k);  // [m, 1] or [m, k/128]
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.out_dtype, {runs.run_rows(), d.n});  // [m/P, n]
  auto out = p.output("out", d.out_dtype, {runs.run_rows(), d.n});                      // [m/P, n]
  auto slots = p.buffer("slots", d.out_dtype, {d.world_size, runs.run_rows(), d.n},
                        {.space = Space::kSymmetric, .num_slots = 2});  // [P, m/P, n]
  // Rows past m are padding of the last ranks, zero as everything past m is.
  std::int64_t rows = ceil_div(d.m, std::int64_t{d.world_size}) * d.world_size;
  std::int64_t num_tiles = ceil_div(rows, tile.bm) * ceil_div(d.n, tile.bn);
  auto arrived = p.signal("arrived", d.world_size * num_tiles);  // by sender and tile

  Resource sms = product_sms(cfg.loop);
  p.role("gemm", sms, p.grid(rows, d.n, tile.bm, tile.bn).raster(cfg.loop.raster),
         [&](const Tile& t) {
           // The rows of `owner` within the tile, of what `of_rank` has of them.
           auto part = [&](const TensorRef& x, const Index& of_rank, const Index& owner) {
             Index row = p.let("row", t.row - runs.first_row(owner));
             return x.tile({of_rank, row, t.col}, tile.bm, tile.bn).until_row(runs.num_rows(owner));
           };
           Value product = linear.product(tile, t.col, tile_rows(a, scale_a, tile, {.row = t.row}));
           Value partial = cast(product, d.out_dtype);
           p.loop(1, d.world_size, [&](const Index& i) {
             Index owner = p.let("owner", (p.rank() + i) % d.world_size);
             p.store(part(slots, p.rank(), owner).on(owner), partial);
           });
           p.loop(1, d.world_size, [&](const Index& i) {
             p.notify(arrived[p.rank() * num_tiles + t.index], (p.rank() + i) % d.world_size);
           });
           p.loop(1, d.world_size, [&](const Index& i) {
             p.wait(arrived[(p.rank() + i) % d.world_size * num_tiles + t.index], 1);
           });
           constexpr std::int64_t kMostElements = 4096;  // that registers hold of every rank
           auto arrived_part = [&](const Index& source) {
             return p.load(part(slots, source, p.rank()));
           };
           Value sum = sum_with_own(p, partial, arrived_part, tile.bm * tile.bn <= kMostElements);
           sum = averaged(d, sum);
           Index row = p.let("own_row", t.row - runs.first_row(p.rank()));
           if (d.residual) {
             Slice own = residual.tile({row, t.col}, tile.bm, tile.bn);
             sum = sum + cast(p.load(own.until_row(runs.num_rows(p.rank()))), sum.dtype());
           }
           p.store(out.tile({row, t.col}, tile.bm, tile.bn), cast(sum, d.out_dtype));
         });
  return p.finish();
}

}  // namespace

Program gemm_rs(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  check(d, cfg);
  if (cfg.across && d.world_size > 1) return across_ranks(d, cfg);
  const GemmTile& tile = cfg.loop.tile;
  ProgramBuilder p("gemm_rs", d.world_size);
  PartialSums partials(p, d, cfg);  // m; a [m, k], b [n, k]
  const Index& run_rows = partials.run_rows();
  TensorRef residual;
  if (d.residual) residual = p.input("residual", d.out_dtype, {run_rows, d.n});  // [m/P, n]
  auto out = p.output("out", d.out_dtype, {run_rows, d.n});                      // [m/P, n]

  p.on_start([&] { partials.announce(); });
  partials.run([&](const PartialSums::OwnTile& t, Value sum) {
    sum = averaged(d, sum);
    if (d.residual) {
      Slice rows = residual.tile({t.row, t.col}, tile.bm, t.cols);
      sum = sum + cast(p.load(rows.until_row(partials.own_rows())), sum.dtype());
    }
    p.store(out.tile({t.row, t.col}, tile.bm, t.cols), cast(sum, d.out_dtype));
  });
  return p.finish();
}

}  // namespace stretto
