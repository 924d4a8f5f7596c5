#include "stretto/ops/gemm_rs/gemm_rs_sm90.h"

#include <algorithm>
#include <vector>

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {
namespace {

constexpr std::int64_t kRaster = 8;

GemmRsConfig gpu_config_across(const GemmRsDesc& d, std::int64_t rows, int sms) {
  MainLoop loop = gpu_loop(d, rows, sms);
  // A tile and its sum fill the registers.
  loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 128);
  std::int64_t tiles = ceil_div(rows, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  return {.loop = {.tile = loop.tile,
                   .num_compute_sms = gpu_workers(tiles, sms),
                   .raster = kRaster,
                   .num_stages = loop.num_stages},
          .num_reduce_sms = 0,
          .across = true};
}

// Whether the assembler runs out of registers (CUDA 13.0, stretto compile OP --candidates).
// Whose rows are whose takes registers where the remainder is no mask.
bool spills(const GemmRsDesc& d, const GemmRsConfig& c) {
  return !masks_ranks(d.world_size) && c.loop.tile.bn == 256;
}

// Whether a wave of tiles multiplies enough with what it reads: else memory, from which the weights
// come anew for each group of row tiles, takes longer than the products (468 x 18432 x 36864 on two
// H200s: 1.41 ms with a raster of 1, cuBLASLt's product 1.11).
bool reads_little(const GemmRsDesc& d, const GemmRsConfig& c, std::int64_t raster) {
  const std::int64_t sms = c.loop.num_compute_sms, bm = c.loop.tile.bm, bn = c.loop.tile.bn;
  const std::int64_t columns = std::min(ceil_div(d.n, bn), ceil_div(sms, raster));
  return 8 * (columns * bn + ceil_div(sms, columns) * bm) <= 3 * bm * bn;
}

// Eight, or what divides a rank's row tiles (fitted()). All of them where that is so few, as of 13
// or 22, that a wave has all columns of two row tiles at most.
std::int64_t usual_raster(const GemmRsDesc& d, const GemmRsConfig& c) {
  const std::int64_t blocks = ceil_div(ceil_div(d.m, std::int64_t{d.world_size}), c.loop.tile.bm);
  if (d.world_size == 1 || blocks <= kRaster) return kRaster;
  std::int64_t shared = kRaster;
  while (blocks % shared != 0) --shared;
  const std::int64_t of_row = ceil_div(d.n, c.loop.tile.bn);
  return shared <= 2 && 2 * of_row > c.loop.num_compute_sms ? blocks : kRaster;
}

// So many row tiles share a column that each piece is finished before the next one is begun, as far
// as that reads little.
std::int64_t raster_of_pieces(const GemmRsDesc& d, const GemmRsConfig& c) {
  const std::int64_t blocks = ceil_div(ceil_div(d.m, std::int64_t{d.world_size}), c.loop.tile.bm);
  const std::int64_t of_piece = std::min(kRaster, ceil_div(blocks, c.channels_per_rank));
  std::int64_t raster = 1;
  for (std::int64_t r = 1; r <= std::min(kRaster, blocks); ++r) {
    if (blocks % r == 0 && (r <= of_piece || !reads_little(d, c, raster))) raster = r;
  }
  return raster;
}

// With the usual raster all pieces of few rows are finished at the same time. Own tiles that are
// then under way beside the last of the others' hold their SMs until a copy engine has brought what
// they add, and so do those of the next wave, where a wave takes no longer than the copies. Of
// pieces that are finished one after the other the first has come. Of one rank nothing travels.
bool finishes_by_pieces(const GemmRsDesc& d, const GemmRsConfig& c) {
  if (d.world_size == 1) return false;
  const std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  const std::int64_t own = num_tiles(run_rows, d.n, c.loop.tile), sms = c.loop.num_compute_sms;
  const std::int64_t others = own * (d.world_size - 1);
  const std::int64_t beside = ceil_div(others, sms) * sms - others;
  const bool at_once = ceil_div(run_rows, c.loop.tile.bm) <= kRaster || others < 3 * sms;
  return at_once && (4 * beside > sms || 20 * own > d.k);
}

}  // namespace

GemmRsConfig with_scatter(GemmRsConfig cfg, Scatter scatter) {
  cfg.scatter = scatter;
  cfg.num_slots = scatter == Scatter::kEpilogue ? 2 : 1;
  // Stores to owners by an agent are slower than engines or as fast, and take long to prove
  // (docs/performance/overlap.md, 'Why the defaults are what they are').
  if (scatter == Scatter::kEpilogue && cfg.loop.store_slots > 0) {
    cfg.loop.stagger = cfg.loop.store_slots = cfg.loop.load_slots = 0;
    ++cfg.loop.num_stages;  // in whose place they were
  }
  return cfg;
}

GemmRsConfig gpu_config_of_runs(const GemmRsDesc& d, const GpuTarget& gpu) {
  const int sms = gpu.sms;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  // All ranks' tiles keep the SMs busy, the first rows of each rank's in a tile of their own.
  const bool few = run_rows <= kFewRows;
  const std::int64_t rows = few ? run_rows : ceil_div(run_rows, 128) * 128 * d.world_size;
  MainLoop loop = gpu_loop(d, rows, sms);
  // Whose rows are whose takes registers where the remainder is no mask: sums beside 256 columns
  // spill then.
  const bool masks = masks_ranks(d.world_size);
  if (!masks) loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 192);
  const std::int64_t blocks = ceil_div(run_rows, loop.tile.bm);
  const std::int64_t tiles = blocks * ceil_div(d.n, loop.tile.bn) * d.world_size;
  GemmRsConfig cfg{.loop = {.tile = loop.tile,
                            .num_compute_sms = gpu_workers(tiles, sms),
                            .raster = kRaster,
                            .num_stages = loop.num_stages},
                   .num_reduce_sms = 0,
                   .channels_per_rank = std::max<std::int64_t>(blocks, 1)};
  // An agent stores, in the place of a stage. Who loads the factors also brings what arrived, by
  // TMA. Tiles of 256 columns with both are faster than narrower ones that keep the SMs busy by two
  // per cent more.
  bool halves =
      d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && size_bytes(d.out_dtype) == 2;
  const int beside_ringing = sms - 1;
  auto columns = [&](std::int64_t bn) {
    return columns_of_sm(blocks * d.world_size, d.n, bn, beside_ringing);
  };
  bool agent =
      halves && loop.tile.bm == 128 && masks && columns(256) * 50 <= columns(loop.tile.bn) * 51;
  bool by_tma = d.n % 8 == 0 && d.k % 8 == 0;
  // Tiles that all SMs store at once fill the link, and the SMs wait for it. A copy engine costs
  // one SM, which rings for it. It pays from a wave and a half of tiles on, of other types and
  // without TMA from six.
  std::int64_t channels = least_channels(run_rows, loop.tile.bm, d.n);
  const bool early = by_tma && (agent || (halves && d.world_size > 1));
  if (channels == 0 || 2 * tiles < (early ? 3 : 12) * sms) return cfg;
  cfg.scatter = Scatter::kCopyEngine;
  cfg.loop.num_compute_sms = beside_ringing;
  // A piece costs an engine half as much beside its bytes as these cost the link, so pieces are few
  // and large.
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20, kMostPieces = 4;
  std::int64_t bytes = run_rows * d.n * static_cast<std::int64_t>(size_bytes(d.out_dtype));
  std::int64_t pieces = std::clamp<std::int64_t>(bytes / kPieceBytes, 2, kMostPieces);
  cfg.num_slots = 1;
  // On four GPUs what one wave of tiles makes for another rank has all come when the wave is over,
  // so it is one piece. Two pieces go through two queues, of which one waits while the other
  // copies. Where a rank's rows are half a wave of wide tiles, they are one wave of narrow ones.
  const std::int64_t wave = blocks * ceil_div(d.n, std::int64_t{256});
  const bool measured = d.world_size > 2 && agent;
  if (measured && 2 * wave <= sms) {
    cfg.loop.tile.bn = 128;
    cfg.loop.num_stages = 6;
    cfg.channels_per_rank = std::max(std::min<std::int64_t>(blocks, 2), channels);
    return cfg;
  }
  if (measured && wave <= sms) pieces = 1;
  if (measured && pieces == 2) cfg.num_copy_queues = 2;
  cfg.channels_per_rank = std::max(std::min(blocks, pieces), channels);
  if (agent) {
    cfg.loop.tile.bn = 256;
    cfg.loop.num_stages = 3;
    cfg.loop.store_slots = 4;
    cfg.loop.load_slots = by_tma ? 3 : 0;
    // Else a warpgroup a step behind multiplies while the other loads.
    cfg.loop.stagger =
        by_tma || (d.residual && d.world_size > 2) ? 0 : 1;  // both spill beside parts
  }
  cfg.loop.raster = finishes_by_pieces(d, cfg) ? raster_of_pieces(d, cfg) : usual_raster(d, cfg);
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
  return fitted(d, {.loop = {.tile = tile}, .channels_per_rank = 2});
}

std::vector<GemmRsConfig> gpu_configs(const GemmRsDesc& d, Scatter scatter, const GpuTarget& gpu) {
  std::vector<GemmRsConfig> configs = {default_config(d, gpu)};
  GemmRsConfig base = gpu_config_of_runs(d, gpu);
  bool engine = scatter == Scatter::kCopyEngine;
  // One SM rings for the copy engine, which takes partial sums that are all there.
  int ringing = engine ? 1 : 0;
  if (base.scatter != scatter) {
    base = with_scatter(base, scatter);
    base.loop.num_compute_sms = std::min(base.loop.num_compute_sms, gpu.sms - ringing);
  }
  if (configs[0].scatter != scatter) configs.clear();
  const bool halves = is_half(d.a_dtype, d.b_dtype);
  for (const MainLoop& loop : loops_for(d.m)) {
    // A tile and its sum fill the registers.
    if (!halves || configs.empty() || !configs[0].across || loop.tile.bn > 128) continue;
    GemmRsConfig config = configs[0];
    config.loop.tile = loop.tile;
    config.loop.num_stages = loop.num_stages;
    config.loop.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms);
    add(configs, fitted(d, config));
  }
  add(configs, fitted(d, base));
  if (!halves) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  struct Choice {
    int reduce;
    std::int64_t channels;
  };
  const std::vector<Choice> choices = engine
                                          ? std::vector<Choice>{{0, 4}, {0, 8}, {0, 16}}
                                          : std::vector<Choice>{{0, 32}, {0, 8}, {8, 32}, {16, 32}};
  auto offer = [&](GemmRsConfig config) {
    if (spills(d, config)) return;
    config.loop.raster = usual_raster(d, config);
    add(configs, fitted(d, config));
    if (!engine) return;
    config.loop.raster = raster_of_pieces(d, config);
    add(configs, fitted(d, config));
  };
  for (const MainLoop& loop : loops_for(run_rows)) {
    for (const Choice& c : choices) {
      GemmRsConfig config = base;
      std::int64_t tiles = num_tiles(run_rows, d.n, loop.tile) * d.world_size;
      config.loop = with_tile(base.loop, loop, gpu_workers(tiles, gpu.sms - c.reduce - ringing));
      config.num_reduce_sms = c.reduce;
      config.channels_per_rank = engine
                                     ? copied_channels_of(run_rows, loop.tile.bm, d.n, c.channels)
                                     : channels_of(run_rows, loop.tile.bm, c.channels);
      offer(config);
      // An agent that stores, in the place of a stage, where the default has one.
      if (base.loop.store_slots == 0 || loop.tile.bn != base.loop.tile.bn) continue;
      const int sms = config.loop.num_compute_sms;
      config.loop = base.loop;
      config.loop.tile = loop.tile;
      config.loop.num_compute_sms = sms;
      config.loop.load_slots = 0;
      offer(config);
      config.loop.load_slots = base.loop.load_slots;
      offer(config);
    }
  }
  return configs;
}

}  // namespace stretto
