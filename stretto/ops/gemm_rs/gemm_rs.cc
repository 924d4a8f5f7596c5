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
  if (!engine || !epilogue || c.num_stages == 0) {
    fields.only("load_slots", c.load_slots, 0,
                "loads ahead need stages, copy engines and sums in the epilogue");
  }
  if (d.world_size == 1) return;
  if (!engine) {
    fields.only("num_copy_queues", c.num_copy_queues, 1, "the epilogue scatters");
  }
  if (c.across) {
    const char* reason = "tiles reach across the ranks' rows, and who multiplies stores them";
    fields.only("store_slots", c.store_slots, 0, reason);
    fields.only("channels_per_rank", c.channels_per_rank, 1, reason);
    return;
  }
  RowRunsOptions rows{.m_bound = d.m,
                      .world_size = d.world_size,
                      .block_rows = c.tile.bm,
                      .channels = c.channels_per_rank};
  std::string tiles = fmt::format("tiles of {} rows of {} ranks, ", c.tile.bm, d.world_size);
  fields.only("channels_per_rank", c.channels_per_rank, possible_channels(rows),
              tiles + "as many to a channel");
  // Row tiles that share a column must be of one owner: own tiles that came before others' would
  // wait for ranks that wait in the same way.
  std::int64_t blocks = std::max<std::int64_t>(num_blocks(rows), 1);
  std::int64_t shared = std::min(c.raster, blocks);
  while (blocks % shared != 0) --shared;
  if (shared != blocks) {
    fields.only("raster", c.raster, shared, fmt::format("{}{} of one", tiles, blocks));
  }
}

void check(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  check_product_sizes("gemm_rs", d, cfg);
  check_sizes("gemm_rs", {{"num_copy_queues", cfg.num_copy_queues},
                          {"channels_per_rank", cfg.channels_per_rank},
                          {"num_slots", cfg.num_slots}});
  check_sizes("gemm_rs", {{"num_reduce_sms", cfg.num_reduce_sms}}, 0);
  check_sizes("gemm_rs", {{"load_slots", cfg.load_slots}}, 0);
  check_factors("gemm_rs", {d.a_dtype, d.b_dtype, d.scaling, cfg.tile, d.b_kn});
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

std::string to_string(const GemmRsDesc& d) {
  return fmt::format("gemm_rs P={} m={} n={} k={} a={} b={} out={}{}{}{}{}", d.world_size, d.m, d.n,
                     d.k, short_name(d.a_dtype), short_name(d.b_dtype), short_name(d.out_dtype),
                     d.average ? " average" : "", d.residual ? " residual" : "",
                     scaling_text(d.scaling), weights_text(d.b_kn));
}

std::string to_string(const GemmRsConfig& cfg) {
  return fmt::format(
      "tile={}x{}x{} compute={} reduce={} scatter={} queues={} channels={} slots={} "
      "stages={} raster={}{}{}{}{}",
      cfg.tile.bm, cfg.tile.bn, cfg.tile.bk, cfg.num_compute_sms, cfg.num_reduce_sms,
      name(cfg.scatter), cfg.num_copy_queues, cfg.channels_per_rank, cfg.num_slots, cfg.num_stages,
      cfg.raster, stagger_text(cfg.stagger),
      cfg.store_slots > 0 ? fmt::format(" store_slots={}", cfg.store_slots) : "",
      cfg.load_slots > 0 ? fmt::format(" load_slots={}", cfg.load_slots) : "",
      cfg.across ? " across" : "");
}

namespace {

GemmRsConfig gpu_config_across(const GemmRsDesc& d, std::int64_t rows, int sms) {
  GpuLoop loop = gpu_loop({.m = rows,
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype,
                           .scaling = d.scaling,
                           .num_sms = sms});
  // A tile and its sum fill the registers.
  loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 128);
  std::int64_t tiles = ceil_div(rows, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  return {.tile = loop.tile,
          .num_compute_sms = gpu_workers(tiles, sms),
          .num_reduce_sms = 0,
          .num_stages = loop.num_stages,
          .raster = 8,
          .across = true};
}

}  // namespace

GemmRsConfig fitted(const GemmRsDesc& d, GemmRsConfig cfg) {
  fit(FieldFit::reducing(), d, cfg);
  return cfg;
}

GemmRsConfig with_scatter(GemmRsConfig cfg, Scatter scatter) {
  cfg.scatter = scatter;
  cfg.num_slots = scatter == Scatter::kEpilogue ? 2 : 1;
  // Stores to owners by an agent are slower than engines with 4096 columns, as fast with 8192
  // (docs/performance/overlap.md), and take 91 s of CPU time to prove for 4096 x 8192 on two ranks.
  if (scatter == Scatter::kEpilogue && cfg.store_slots > 0) {
    cfg.stagger = cfg.store_slots = cfg.load_slots = 0;
    ++cfg.num_stages;  // in whose place they were
  }
  return cfg;
}

GemmRsConfig gpu_config_of_runs(const GemmRsDesc& d, const GpuTarget& gpu) {
  const int sms = gpu.sms;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  // All ranks' tiles keep the SMs busy, the first rows of each rank's in a tile of their own.
  const bool few = run_rows <= kFewRows;
  GpuLoop loop = gpu_loop({.m = few ? run_rows : ceil_div(run_rows, 128) * 128 * d.world_size,
                           .n = d.n,
                           .k = d.k,
                           .a_dtype = d.a_dtype,
                           .b_dtype = d.b_dtype,
                           .scaling = d.scaling,
                           .num_sms = sms});
  // Whose rows are whose takes registers where the remainder is no mask: sums beside 256 columns
  // spill then.
  const bool masks = masks_ranks(d.world_size);
  if (!masks) loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 192);
  const std::int64_t blocks = ceil_div(run_rows, loop.tile.bm);
  const std::int64_t tiles = blocks * ceil_div(d.n, loop.tile.bn) * d.world_size;
  GemmRsConfig cfg{.tile = loop.tile,
                   .num_compute_sms = gpu_workers(tiles, sms),
                   .num_reduce_sms = 0,
                   .channels_per_rank = std::max<std::int64_t>(blocks, 1),
                   .num_stages = loop.num_stages,
                   .raster = 8};
  // An agent that stores, in the place of a stage: 8192 x 4096 in 0.345 instead of 0.363 ms on four
  // H200s, 2026-11-22. Who loads the factors also brings what arrived, by TMA: E_overlap of nine
  // shapes on two H100s, 2026-11-25, 0.84 instead of 0.74 on average (gpu_bench overlap). So do
  // tiles of 256 columns where narrower ones keep the SMs busy by two per cent more: 8192 x 14336
  // times 8192 there in 2.68 ms instead of 3.08 with 224 columns and without agents.
  bool halves =
      d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && size_bytes(d.out_dtype) == 2;
  const int beside_ringing = sms - 1;
  auto columns = [&](std::int64_t bn) {
    return columns_of_sm(blocks * d.world_size, d.n, bn, beside_ringing);
  };
  bool agent =
      halves && loop.tile.bm == 128 && masks && columns(256) * 50 <= columns(loop.tile.bn) * 51;
  bool by_tma = d.n % 8 == 0 && d.k % 8 == 0;
  // Tiles that all SMs store at once fill the link, and the SMs wait for it; a copy engine costs
  // one SM, which rings for it, and pays from several waves of tiles on, where what arrived is
  // loaded ahead from the second on: 1024 x 8192 x 14336 on two H100s, 2026-11-25, 0.37 ms instead
  // of 0.40, 4096 x 4096 x 7168 0.36 instead of 0.43 (docs/performance/overlap.md).
  std::int64_t channels = least_channels(run_rows, loop.tile.bm, d.n);
  if (channels == 0 || 2 * tiles < (agent && by_tma ? 3 : 12) * sms) return cfg;
  cfg.scatter = Scatter::kCopyEngine;
  cfg.num_compute_sms = beside_ringing;
  // A piece costs an engine some 9 us beside its bytes, whose link takes 20 us for so many: on four
  // H200s, 2026-11-22, 8192 x 4096 in two pieces a rank took 0.36 ms, in four 0.41 (gpu_bench
  // overlap), 8192 x 8192 in four 1.57 and in two 1.61.
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20, kMostPieces = 4;
  std::int64_t bytes = run_rows * d.n * static_cast<std::int64_t>(size_bytes(d.out_dtype));
  std::int64_t pieces = std::clamp<std::int64_t>(bytes / kPieceBytes, 2, kMostPieces);
  cfg.num_slots = 1;
  // On four H200s, 2026-11-26, what one wave of tiles makes for another rank has all come when the
  // wave is over: in one piece 4096 x 4096 took 0.189 ms, in two 0.207. Two pieces go through two
  // queues, of which one waits while the other copies (8192 x 4096 in 0.271 ms instead of 0.277).
  // Where a rank's rows are half a wave of wide tiles, they are one of narrow ones: 1024 x 8192 in
  // 0.198 ms instead of 0.222.
  const std::int64_t wave = blocks * ceil_div(d.n, std::int64_t{256});
  const bool measured = d.world_size > 2 && agent;
  if (measured && 2 * wave <= sms) {
    cfg.tile.bn = 128;
    cfg.num_stages = 6;
    cfg.channels_per_rank = std::max(std::min<std::int64_t>(blocks, 2), channels);
    return cfg;
  }
  if (measured && wave <= sms) pieces = 1;
  if (measured && pieces == 2) cfg.num_copy_queues = 2;
  cfg.channels_per_rank = std::max(std::min(blocks, pieces), channels);
  if (agent) {
    cfg.tile.bn = 256;
    cfg.num_stages = 3;
    cfg.store_slots = 4;
    cfg.load_slots = by_tma ? 3 : 0;
    // Else a warpgroup a step behind multiplies while the other loads.
    cfg.stagger = by_tma || (d.residual && d.world_size > 2) ? 0 : 1;  // both spill beside parts
  }
  return cfg;
}

GemmRsConfig default_config(const GemmRsDesc& d, Target target) {
  check_sizes("gemm_rs", {{"world_size", d.world_size}, {"m", d.m}, {"n", d.n}, {"k", d.k}});
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  if (target == Target::kCuda) {
    bool across = d.world_size > 1 && d.m <= kMostRowsAcross;
    return fitted(d, across ? gpu_config_across(d, run_rows * d.world_size, target.sms())
                            : gpu_config_of_runs(d, target.gpu()));
  }
  // Tiles do not cross from one rank's rows into the next rank's: they are cut from a run of rows,
  // into at least two blocks, so that one can travel while the other is multiplied.
  GemmTile tile = scaled_tile(default_tile(run_rows, d.n, d.k), d.scaling);
  if (run_rows > 8) tile.bm = std::min(tile.bm, ceil_div(run_rows, std::int64_t{16}) * 8);
  return fitted(d, {.tile = tile, .channels_per_rank = 2});
}

namespace {

// Of every tile each rank gets its own rows from all others and adds them to what it has of them in
// registers. All wait for each other in every tile, so two slots are enough (gemm_rs.h).
Program across_ranks(const GemmRsDesc& d, const GemmRsConfig& cfg) {
  const GemmTile& tile = cfg.tile;
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

  Resource sms =
      Resource::sms(cfg.num_compute_sms).pipelined(cfg.num_stages).staggered(cfg.stagger);
  p.role("gemm", sms, p.grid(rows, d.n, tile.bm, tile.bn).raster(cfg.raster), [&](const Tile& t) {
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
    auto arrived_part = [&](const Index& source) { return p.load(part(slots, source, p.rank())); };
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
  const GemmTile& tile = cfg.tile;
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
