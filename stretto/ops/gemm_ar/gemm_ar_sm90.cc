#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"

#include <algorithm>
#include <vector>

#include "stretto/executor/kernels/dot.h"
#include "stretto/ops/gemm/candidate_loops.h"
#include "stretto/ops/gemm_ar/few_rows.h"

namespace stretto {
namespace {

// Beyond, twice the bytes take longer than a signal.
constexpr std::int64_t kMaxPacketRows = 16;

// Gives the tile an agent that stores, where slots for it fit beside the stages.
void store_with_epilogue_warp(GemmRsConfig& cfg, const GemmArDesc& d, int sms) {
  constexpr MainLoop kLoops[] = {
      {.tile = {.bn = 256}, .num_stages = 3, .stagger = 0, .store_slots = 4},
      {.tile = {.bn = 192}, .num_stages = 4, .stagger = 2, .store_slots = 4},
      {.tile = {.bn = 128}, .num_stages = 6, .stagger = 3, .store_slots = 2}};
  bool halves =
      d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && size_bytes(d.out_dtype) == 2;
  cfg.loop.store_slots = 0;
  if (!halves || cfg.loop.tile.bm != 128 || cfg.loop.tile.bn < 128) return;
  const std::int64_t row_tiles =
      ceil_div(ceil_div(d.m, std::int64_t{d.world_size}), cfg.loop.tile.bm) * d.world_size;
  // The agent pays where its tiles keep the SMs busy by no more than two per cent more.
  std::int64_t below = columns_of_sm(row_tiles, d.n, cfg.loop.tile.bn, sms) * 51 / 50 + 1;
  // Of ranks that are no power of two, sums beside 256 columns spill (gemm_rs.cc).
  const std::int64_t most = masks_ranks(d.world_size) ? 256 : 192;
  const MainLoop given = cfg.loop;
  for (MainLoop loop : kLoops) {
    const std::int64_t bn = loop.tile.bn, columns = columns_of_sm(row_tiles, d.n, bn, sms);
    if (bn > most || columns >= below) continue;
    below = columns;
    loop.tile = {given.tile.bm, bn, given.tile.bk};
    loop.num_compute_sms = gpu_workers(row_tiles * ceil_div(d.n, bn), sms);
    loop.raster = given.raster;
    cfg.loop = loop;
  }
}

GemmArConfig gpu_config(const GemmArDesc& d, ReduceShots shots, const GpuTarget& gpu) {
  if (shots == ReduceShots::kTwo) {
    GemmRsConfig rs = gpu_config_of_runs(scattered(d), gpu);
    // Engines scatter, and sums leave tile by tile: the fastest of three ways.
    const bool loads_ahead = rs.loop.load_slots > 0;
    if (rs.scatter == Scatter::kCopyEngine && !loads_ahead) {
      rs = with_scatter(rs, Scatter::kEpilogue);
      std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
      rs.channels_per_rank = ceil_div(run_rows, rs.loop.tile.bm);
      rs.loop.num_compute_sms = gpu.sms;
    }
    if (!loads_ahead) store_with_epilogue_warp(rs, d, gpu.sms);
    return {.loop = rs.loop,
            .shots = shots,
            .num_reduce_sms = rs.num_reduce_sms,
            .channels = rs.channels_per_rank,
            .num_slots = rs.num_slots,
            .scatter = rs.scatter,
            .num_copy_queues = rs.num_copy_queues};
  }
  MainLoop loop = gpu_loop(d, d.m, gpu.sms);
  // A tile and its sum in rank order fill the registers.
  loop.tile.bn = std::min<std::int64_t>(loop.tile.bn, 128);
  const std::int64_t tiles = num_tiles(d.m, d.n, loop.tile);
  loop.num_compute_sms = gpu_workers(tiles, gpu.sms);
  return {.loop = loop,
          .shots = shots,
          .num_reduce_sms = 0,
          .packets = shots == ReduceShots::kShared || d.m <= kMaxPacketRows,
          .channels = tiles};
}

// Whether the assembler runs out of registers (CUDA 13.0, stretto compile OP --candidates).
// Whose rows are whose takes registers where the remainder is no mask.
bool spills(const GemmArDesc& d, const GemmArConfig& c) {
  if (c.swap_ab) {
    // Sums fill up to half of the registers, beside what is added to them.
    const bool several = d.world_size > 2;
    std::int64_t most = kMostSwappedRows;
    if (c.split_k > 1 || c.packets || (several && c.loop.tile.bn > 64)) most = 208;
    if (several ? c.split_k > 1 : c.packets) most = 144;
    return c.loop.tile.bm > most;
  }
  // A tile, what came of all others, and its sum in rank order.
  if (c.packets && d.world_size > 2 && c.loop.tile.bm * c.loop.tile.bn > 64 * 64) return true;
  if (c.shots != ReduceShots::kTwo) return c.num_reduce_sms == 0 && c.loop.tile.bn > 128;
  // Of 4096 x 4096 x 1024 on four ranks, with four channels.
  if (c.loop.load_slots > 0) return d.world_size > 2 && c.channels > 2;
  if (c.loop.tile.bm < 128 || c.loop.store_slots > 0) return false;
  const bool masks = masks_ranks(d.world_size);
  // A tile that SMs of their own add up and store to every rank.
  if (c.num_reduce_sms > 0) return c.loop.tile.bn > (masks ? 128 : 64);
  if (d.world_size == 2) return false;
  if (!masks && c.loop.tile.bn == 256) return true;
  bool engine = c.scatter == Scatter::kCopyEngine;
  return c.loop.tile.bn == 192 ? engine || masks : !engine && masks && c.loop.tile.bn % 128 == 0;
}

// As many rows to a tile as there are, beside 64 or 128 of the weights: gemm's tiles of few rows,
// whole and in parts of k. Up to kFewRows all rows are one tile with rows on the left, too.
void add_swapped(std::vector<GemmArConfig>& configs, const GemmArDesc& d, int num_sms) {
  constexpr std::int64_t kMostRows = 512;
  if (d.m <= kFewRows || d.m > kMostRows) return;
  const std::int64_t of_tile = ceil_div(d.m, ceil_div(d.m, kMostSwappedRows));
  const std::int64_t step = of_tile > few_rows::kMostTurnedRows ? 16 : 8,
                     rows = ceil_div(of_tile, step) * step;
  const bool one = configs.front().shots == ReduceShots::kOne;
  for (std::int64_t cols : {64, 128}) {
    GemmArConfig config = configs.front();
    config.num_reduce_sms = 0;
    config.swap_ab = true;
    auto add_parts = [&](int parts, bool packets) {
      // Beside what is turned, or the sums that are stored.
      MainLoop loop = swapped_loop(rows, cols, parts == 1 ? 2 : 4);
      const std::int64_t tiles = num_tiles(d.m, d.n, loop.tile);
      config.loop = with_tile(config.loop, loop, gpu_workers(tiles * parts, num_sms));
      config.channels = tiles;
      config.split_k = parts;
      config.packets = packets;
      if (loop.num_stages > 1 && !spills(d, config)) add(configs, fitted(d, config));
    };
    add_parts(1, false);
    if (!one) add_parts(1, true);
    const std::int64_t tiles = config.channels, steps = ceil_div(d.k, config.loop.tile.bk);
    for (int parts : one ? paying_splits(tiles, steps, num_sms) : std::vector<int>()) {
      add_parts(parts, false);
    }
  }
}

}  // namespace

GemmArConfig default_config(const GemmArDesc& d, Target target) {
  // One hop while the rows are few, as in a decode step. Beyond, P times the bytes cost more than
  // the second hop.
  std::int64_t most_rows = target == Target::kCuda ? 256 : 32;
  if (d.m > most_rows) return default_config(d, ReduceShots::kTwo, target);
  const bool shared = target == Target::kCuda && d.world_size > 2 && d.m > kMaxPacketRows;
  return default_config(d, shared ? ReduceShots::kShared : ReduceShots::kOne, target);
}

GemmArConfig default_config(const GemmArDesc& d, ReduceShots shots, Target target) {
  check_sizes("gemm_ar", {{"world_size", d.world_size}, {"m", d.m}, {"n", d.n}, {"k", d.k}});
  if (target == Target::kCuda) return fitted(d, gpu_config(d, shots, target.gpu()));
  // Tiles have the rows of all ranks.
  bool all_rows = shots != ReduceShots::kTwo;
  GemmTile tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling);
  if (!all_rows) {
    bool many_rows = tile.bm > kernels::kMaxSmallRows;
    tile = default_config(scattered(d)).loop.tile;
    // One kernel for both algorithms, so that both give the same bits.
    if (many_rows) tile.bm = std::max(tile.bm, std::int64_t{2} * kernels::kMaxSmallRows);
  }
  GemmArConfig cfg{.loop = {.tile = tile},
                   .shots = shots,
                   .num_reduce_sms = shots == ReduceShots::kShared ? 0 : 1,
                   .channels = all_rows ? ceil_div(d.m, tile.bm) * ceil_div(d.n, tile.bn) : 2};
  return fitted(d, cfg);
}

std::vector<GemmArConfig> gpu_configs(const GemmArDesc& d, ReduceShots shots,
                                      const GpuTarget& gpu) {
  std::vector<GemmArConfig> configs = {default_config(d, shots, gpu)};
  if (!is_half(d.a_dtype, d.b_dtype)) return configs;
  // all_rows: tiles have the rows of all ranks.
  const bool one = shots == ReduceShots::kOne, all_rows = shots != ReduceShots::kTwo;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  struct Choice {
    int reduce;
    Scatter scatter = Scatter::kEpilogue;
    std::int64_t channels = 32;
    bool packets = false;
  };
  std::vector<Choice> choices = {
      {0}, {8}, {16}, {0, Scatter::kCopyEngine, 4}, {0, Scatter::kCopyEngine, 16}};
  if (one) choices = {{0}, {8}, {32}, {64}};
  if (shots == ReduceShots::kShared) choices = {{0}};
  // Twice the bytes: for few rows.
  if (one && d.m <= 64) choices.push_back({.reduce = 0, .packets = true});
  const GemmArConfig first = configs.front();
  for (const MainLoop& loop : loops_for(all_rows ? d.m : run_rows)) {
    std::int64_t tiles = all_rows ? num_tiles(d.m, d.n, loop.tile)
                                  : num_tiles(run_rows, d.n, loop.tile) * d.world_size;
    for (const Choice& c : choices) {
      bool engine = c.scatter == Scatter::kCopyEngine;
      GemmArConfig config = first;
      config.loop =
          with_tile(first.loop, loop, gpu_workers(tiles, gpu.sms - c.reduce - (engine ? 2 : 0)));
      config.num_reduce_sms = c.reduce;
      config.channels = all_rows ? tiles
                        : engine ? copied_channels_of(run_rows, loop.tile.bm, d.n, c.channels)
                                 : channels_of(run_rows, loop.tile.bm, c.channels);
      config.scatter = config.gather = c.scatter;
      config.packets = c.packets;
      config.num_slots = engine ? 1 : 2;
      config.num_copy_queues = 1;
      if (!spills(d, config)) add(configs, fitted(d, config));
      // An agent that stores, in the place of a stage, where the default has one.
      if (first.loop.store_slots == 0 || loop.tile.bn != first.loop.tile.bn || c.reduce > 0) {
        continue;
      }
      const int sms = config.loop.num_compute_sms;
      config.loop = first.loop;
      config.loop.tile = loop.tile;
      config.loop.num_compute_sms = sms;
      if (!engine) config.loop.load_slots = 0;
      config.gather = Scatter::kEpilogue;
      if (!spills(d, config)) add(configs, fitted(d, config));
    }
  }
  if (all_rows) add_swapped(configs, d, gpu.sms);
  return configs;
}

}  // namespace stretto
