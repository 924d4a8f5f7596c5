#include "stretto/ops/choose/configs.h"

#include <algorithm>
#include <string>

#include "stretto/ops/choose/config_list.h"
#include "stretto/ops/gemm/row_runs.h"

namespace stretto {
namespace {

// A main loop of one SM.
struct Loop {
  GemmTile tile;
  int stages;
};
constexpr Loop kWide{{128, 256, 64}, 4}, kMiddle{{128, 192, 64}, 4}, kNarrow{{128, 128, 64}, 6},
    kOdd{{128, 160, 64}, 5}, kOddWide{{128, 224, 64}, 4}, kThin{{128, 96, 64}, 6},
    kSmall{{64, 64, 64}, 8}, kFlat{{64, 128, 64}, 6}, kFlatWide{{64, 256, 64}, 4};

// Loops that suit a product of `rows` rows; tiles of 128 rows would be half empty for a few.
std::vector<Loop> loops_for(std::int64_t rows) {
  if (rows <= 64) return {kFlat, kSmall, kFlatWide};
  return {kWide, kMiddle, kNarrow, kOdd, kOddWide, kThin};
}

std::int64_t num_tiles(std::int64_t m, std::int64_t n, const GemmTile& tile) {
  return ceil_div(m, tile.bm) * ceil_div(n, tile.bn);
}

// At most 1 / channels of a run of rows, and no more channels than blocks of rows.
std::int64_t channels_of(std::int64_t run_rows, std::int64_t rows, std::int64_t at_most) {
  return std::clamp<std::int64_t>(run_rows / rows, 1, at_most);
}

// The same, each of `cols` columns and moved by one copy.
std::int64_t copied_channels_of(std::int64_t run_rows, std::int64_t rows, std::int64_t cols,
                                std::int64_t at_most) {
  return std::max(channels_of(run_rows, rows, at_most), least_channels(run_rows, rows, cols));
}

// Where tiles leave more than half of the SMs idle, the same with several SMs to a tile, each with
// steps enough to fill its pipe.
void add_split(std::vector<GemmConfig>& configs, const GemmDesc& d, int num_sms) {
  const std::vector<GemmConfig> whole = configs;
  for (const GemmConfig& config : whole) {
    // Wider ones leave no registers for what others have summed.
    bool other = config.cluster_size > 1 || config.raster == 1 || config.stagger > 0;
    if (other || config.tile.bn > 128) continue;
    std::int64_t tiles = num_tiles(d.m, d.n, config.tile), steps = ceil_div(d.k, config.tile.bk);
    for (int parts : {2, 3, 4, 6, 8}) {
      if (tiles * parts > num_sms || steps < 4 * parts) break;
      GemmConfig split = config;
      split.split_k = parts;
      split.num_compute_sms = gpu_workers(tiles * parts, num_sms);
      add(configs, split);
    }
  }
}

// Factors of 8 bits: pairs of blocks that share the weights, and single ones, which leave fewer
// SMs idle at the end. Tiles with scales of blocks hold a sum and two products.
void add_bytes(std::vector<GemmConfig>& configs, const GemmDesc& d, int num_sms) {
  struct Choice {
    GemmTile tile;  // of the whole cluster
    int cluster, stages, raster;
    int stagger = 0, store_slots = 0, consumers = 1;
  };
  const std::vector<Choice> rows = {
      {{256, 256, 128}, 2, 4, 8},         {{256, 256, 128}, 2, 4, 16},
      {{256, 224, 128}, 2, 4, 8},         {{256, 192, 128}, 2, 4, 8},
      {{256, 192, 128}, 2, 4, 16},        {{256, 160, 128}, 2, 5, 8},
      {{256, 128, 128}, 2, 6, 8},         {{128, 256, 128}, 1, 4, 8},
      {{128, 192, 128}, 1, 4, 8},         {{128, 160, 128}, 1, 5, 8},
      {{128, 128, 128}, 1, 6, 8},         {{128, 96, 128}, 1, 6, 8},
      {{128, 192, 128}, 1, 4, 8, 2},      {{128, 192, 128}, 1, 4, 8, 3},
      {{256, 192, 128}, 2, 4, 8, 3},      {{256, 256, 128}, 2, 4, 8, 2},
      {{256, 128, 128}, 2, 4, 8},         {{256, 128, 128}, 2, 4, 8, 3},
      {{128, 192, 128}, 1, 4, 8, 2, 4},   {{128, 192, 128}, 1, 4, 8, 3, 4},
      {{128, 256, 128}, 1, 3, 8, 0, 4},   {{256, 192, 128}, 2, 4, 8, 2, 4},
      {{128, 128, 128}, 1, 6, 8, 3, 2},   {{128, 168, 128}, 1, 5, 4, 0, 0, 2},
      {{128, 160, 128}, 1, 5, 4, 0, 0, 2}};
  const std::vector<Choice> blocks = {{{256, 128, 128}, 2, 6, 8},
                                      {{256, 128, 128}, 2, 6, 1},
                                      {{256, 128, 128}, 2, 4, 8},
                                      {{128, 128, 128}, 1, 6, 8},
                                      {{128, 64, 128}, 1, 6, 8}};
  for (const Choice& c : d.scaling == Scaling::kBlock ? blocks : rows) {
    // Clusters load by TMA alone, which takes rows of whole 16 bytes.
    bool by_tma = d.k % 16 == 0;
    if (c.cluster > 1 && (!by_tma || d.m < c.tile.bm)) continue;
    // Where threads load or store, an agent that stores takes registers of the widest products.
    if (c.store_slots > 0 && c.tile.bn > 192 && (!by_tma || d.n % 8 != 0)) continue;
    add(configs, {.tile = c.tile,
                  .num_compute_sms = gpu_workers(num_tiles(d.m, d.n, c.tile), num_sms / c.cluster),
                  .raster = c.raster,
                  .num_stages = c.stages,
                  .num_consumers = c.consumers,
                  .cluster_size = c.cluster,
                  .stagger = c.stagger,
                  .store_slots = c.store_slots});
  }
}

// Whether the assembler runs out of registers (CUDA 13.0, stretto compile OP --candidates).
// Whose rows are whose takes registers where the remainder is no mask.

bool spills(const GemmRsDesc& d, const GemmRsConfig& c) {
  return !masks_ranks(d.world_size) && c.tile.bn == 256;
}

bool spills(const GemmArDesc& d, const GemmArConfig& c) {
  // A tile, what came of all others, and its sum in rank order.
  if (c.packets && d.world_size > 2 && c.tile.bm * c.tile.bn > 64 * 64) return true;
  if (c.shots != ReduceShots::kTwo) return c.num_reduce_sms == 0 && c.tile.bn > 128;
  // Of 4096 x 4096 x 1024 on four ranks, with four channels.
  if (c.load_slots > 0) return d.world_size > 2 && c.channels > 2;
  if (c.tile.bm < 128 || c.store_slots > 0) return false;
  const bool masks = masks_ranks(d.world_size);
  // A tile that SMs of their own add up and store to every rank.
  if (c.num_reduce_sms > 0) return c.tile.bn > (masks ? 128 : 64);
  if (d.world_size == 2) return false;
  if (!masks && c.tile.bn == 256) return true;
  bool engine = c.scatter == Scatter::kCopyEngine;
  return c.tile.bn == 192 ? engine || masks : !engine && masks && c.tile.bn % 128 == 0;
}

}  // namespace

std::vector<GemmConfig> gpu_configs(const GemmDesc& d, const GpuTarget& gpu) {
  std::vector<GemmConfig> configs = {default_config(d, gpu)};
  if (d.swiglu) return configs;
  if (d.a_dtype == DType::kF8E4M3 && d.m > kFewRows) add_bytes(configs, d, gpu.sms);
  if (!is_half(d.a_dtype, d.b_dtype)) return configs;
  struct Shape {
    GemmTile tile;  // of the whole cluster
    int cluster, stages;
  };
  constexpr Shape kShapes[] = {
      {{128, 256, 64}, 1, 4}, {{256, 256, 64}, 2, 4}, {{128, 192, 64}, 1, 4},
      {{256, 128, 64}, 2, 6}, {{128, 128, 64}, 1, 6}, {{128, 224, 64}, 1, 4},
      {{128, 160, 64}, 1, 5}, {{128, 96, 64}, 1, 6},  {{256, 192, 64}, 2, 4},
      {{256, 160, 64}, 2, 5}, {{64, 64, 64}, 1, 8},   {{64, 128, 64}, 1, 6},
      {{64, 256, 64}, 1, 4},  {{64, 96, 64}, 1, 6},
  };
  for (const Shape& s : kShapes) {
    bool flat = s.tile.bm == 64;
    if (flat != (d.m <= 64)) continue;
    // Where warpgroups take turns by default, pairs of blocks are predicted to take a tenth less
    // and were nowhere faster (gpu_bench gemm-suite, one H100, 2026-11-25).
    if (s.cluster > 1 && configs.front().num_consumers > 1) continue;
    std::int64_t tiles = num_tiles(d.m, d.n, s.tile);
    GemmConfig config{.tile = s.tile,
                      .num_compute_sms = gpu_workers(tiles, gpu.sms / s.cluster),
                      .raster = 8,
                      .num_stages = s.stages,
                      .cluster_size = s.cluster};
    GemmTile of_block = s.tile;
    of_block.bm /= s.cluster;
    for (int stagger : {0, paying_stagger(of_block, tiles, gpu.sms / s.cluster)}) {
      config.stagger = stagger;
      config.raster = 8;
      add(configs, config);
      if (s.tile.bn != 128 && s.tile.bn != 256) continue;
      config.raster = 1;
      add(configs, config);
    }
  }
  for (std::int64_t width : widths_in_turn(d.b_kn)) {
    if (d.m <= 64 || d.residual) break;
    LoopInTurn loop;
    loop.tile.bn = width;
    GemmConfig config{.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms)};
    set_loop(config, loop);
    add(configs, config);
  }
  add_split(configs, d, gpu.sms);
  return configs;
}

std::vector<AgGemmConfig> gpu_configs(const AgGemmDesc& d, Gather gather, const GpuTarget& gpu) {
  // SMs that copy for two roles spill (CUDA 13.0).
  if (d.gathered && gather == Gather::kPush) return {};
  std::vector<AgGemmConfig> configs = {default_config(d, gpu, gather)};
  if (!is_half(d.a_dtype, d.b_dtype) || d.swiglu) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  struct Transfer {
    int workers;
    std::int64_t rows, channels;
  };
  // Copy engines take few large pieces and no SM; SMs take small ones, each of them lost to the
  // product.
  const std::vector<Transfer> transfers =
      gather != Gather::kPush
          ? std::vector<Transfer>{{2, 256, 16}, {4, 128, 32}, {2, 1024, 4}, {1, 512, 8}}
          : std::vector<Transfer>{{16, 32, 32}, {8, 32, 32}, {8, 128, 32}, {4, 128, 8}};
  bool takes_sms = gather == Gather::kPush;
  const AgGemmConfig first = configs.front();
  if (first.across) {
    for (const Loop& loop : loops_for(d.m)) {
      AgGemmConfig config = first;
      config.tile = loop.tile;
      config.num_compute_sms =
          gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms - first.num_gather_workers);
      config.num_stages = loop.stages;
      add(configs, fitted(d, config));
    }
  }
  for (const Loop& loop : loops_for(d.m)) {
    for (const Transfer& t : transfers) {
      AgGemmConfig config = first;
      config.across = false;
      config.tile = loop.tile;
      config.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile),
                                           gpu.sms - (takes_sms ? t.workers : 0) - keeping_sms(d));
      config.num_gather_workers = t.workers;
      config.comm_rows = std::min({t.rows, run_rows, most_copied_rows(1, d.k)});
      config.channels_per_rank = channels_of(run_rows, loop.tile.bm, t.channels);
      config.num_stages = loop.stages;
      config.raster = own_first_raster(d, loop.tile, 8);
      // Tiles of 256 columns apart spill without an agent that stores (CUDA 13.0).
      config.stagger =
          loop.tile.bn == 256
              ? 0
              : paying_stagger(loop.tile, num_tiles(d.m, d.n, loop.tile), config.num_compute_sms);
      config.store_slots = 0;
      config.num_consumers = 1;
      // One row tile a column takes registers, too: of 512 x 4096 x 4096 on four ranks.
      if (takes_sms && loop.tile.bn == 256 && config.raster == 1) continue;
      add(configs, fitted(d, config));
    }
  }
  return configs;
}

std::vector<AgColumnsConfig> gpu_configs(const AgColumnsDesc& d, Gather gather,
                                         const GpuTarget& gpu) {
  std::vector<AgColumnsConfig> configs = {default_config(d, gpu, gather)};
  if (!is_half(d.a_dtype, d.b_dtype) || d.world_size == 1) return configs;
  struct Transfer {
    int workers;
    std::int64_t rows;
  };
  const std::vector<Transfer> transfers =
      gather == Gather::kSend ? std::vector<Transfer>{{2, 512}, {1, 2048}, {2, 2048}, {3, 2048}}
                              : std::vector<Transfer>{{16, 32}, {8, 32}, {8, 128}, {4, 128}};
  const std::int64_t most = std::min(d.m, most_copied_rows(1, d.k / d.world_size));
  for (const Loop& loop : loops_for(d.m)) {
    for (const Transfer& t : transfers) {
      AgColumnsConfig config = configs.front();
      config.tile = loop.tile;
      config.num_stages = loop.stages;
      config.num_gather_workers = t.workers;
      config.comm_rows = std::min(t.rows, most);
      config.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile),
                                           gpu.sms - (gather == Gather::kPush ? t.workers : 0));
      add(configs, grouped_by_waves(d, config));
    }
  }
  return configs;
}

std::vector<GemmRsConfig> gpu_configs(const GemmRsDesc& d, Scatter scatter, const GpuTarget& gpu) {
  std::vector<GemmRsConfig> configs = {default_config(d, gpu)};
  GemmRsConfig base = gpu_config_of_runs(d, gpu);
  bool engine = scatter == Scatter::kCopyEngine;
  // One SM rings for the copy engine, which takes partial sums that are all there.
  int ringing = engine ? 1 : 0;
  if (base.scatter != scatter) {
    base = with_scatter(base, scatter);
    base.num_compute_sms = std::min(base.num_compute_sms, gpu.sms - ringing);
  }
  if (configs[0].scatter != scatter) configs.clear();
  const bool halves = is_half(d.a_dtype, d.b_dtype);
  for (const Loop& loop : loops_for(d.m)) {
    // A tile and its sum fill the registers.
    if (!halves || configs.empty() || !configs[0].across || loop.tile.bn > 128) continue;
    GemmRsConfig config = configs[0];
    config.tile = loop.tile;
    config.num_stages = loop.stages;
    config.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms);
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
  for (const Loop& loop : loops_for(run_rows)) {
    for (const Choice& c : choices) {
      GemmRsConfig config = base;
      config.tile = loop.tile;
      config.num_reduce_sms = c.reduce;
      std::int64_t tiles = num_tiles(run_rows, d.n, loop.tile) * d.world_size;
      config.num_compute_sms = gpu_workers(tiles, gpu.sms - c.reduce - ringing);
      config.channels_per_rank = engine
                                     ? copied_channels_of(run_rows, loop.tile.bm, d.n, c.channels)
                                     : channels_of(run_rows, loop.tile.bm, c.channels);
      config.num_stages = loop.stages;
      config.stagger = config.store_slots = config.load_slots = 0;
      if (!spills(d, config)) add(configs, fitted(d, config));
      // An agent that stores, in the place of a stage, where the default has one.
      if (base.store_slots == 0 || loop.tile.bn != base.tile.bn) continue;
      config.num_stages = base.num_stages;
      config.stagger = base.stagger;
      config.store_slots = base.store_slots;
      if (!spills(d, config)) add(configs, fitted(d, config));
      config.load_slots = base.load_slots;
      if (!spills(d, config)) add(configs, fitted(d, config));
    }
  }
  return configs;
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
  for (const Loop& loop : loops_for(all_rows ? d.m : run_rows)) {
    std::int64_t tiles = all_rows ? num_tiles(d.m, d.n, loop.tile)
                                  : num_tiles(run_rows, d.n, loop.tile) * d.world_size;
    for (const Choice& c : choices) {
      bool engine = c.scatter == Scatter::kCopyEngine;
      GemmArConfig config = configs.front();
      config.tile = loop.tile;
      config.num_reduce_sms = c.reduce;
      config.num_compute_sms = gpu_workers(tiles, gpu.sms - c.reduce - (engine ? 2 : 0));
      config.channels = all_rows ? tiles
                        : engine ? copied_channels_of(run_rows, loop.tile.bm, d.n, c.channels)
                                 : channels_of(run_rows, loop.tile.bm, c.channels);
      config.scatter = config.gather = c.scatter;
      config.packets = c.packets;
      config.num_slots = engine ? 1 : 2;
      config.num_copy_queues = 1;
      config.num_stages = loop.stages;
      config.stagger = config.store_slots = config.load_slots = 0;
      if (!spills(d, config)) add(configs, fitted(d, config));
      // An agent that stores, in the place of a stage, where the default has one.
      const GemmArConfig& first = configs.front();
      if (first.store_slots == 0 || loop.tile.bn != first.tile.bn || c.reduce > 0) continue;
      config.num_stages = first.num_stages;
      config.stagger = first.stagger;
      config.store_slots = first.store_slots;
      config.load_slots = engine ? first.load_slots : 0;
      config.gather = Scatter::kEpilogue;
      if (!spills(d, config)) add(configs, fitted(d, config));
    }
  }
  return configs;
}

std::vector<UlyssesConfig> gpu_gemm_a2a_configs(const UlyssesDesc& d, const GpuTarget& gpu) {
  std::vector<UlyssesConfig> configs = {default_gemm_a2a_config(d, gpu)};
  if (!is_half(d.dtype, d.weight_dtype)) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const Loop& loop : loops_for(run_rows)) {
    UlyssesConfig config = configs.front();
    config.tile = loop.tile;
    std::int64_t tiles = num_tiles(run_rows, d.n / d.world_size, loop.tile) * d.world_size;
    config.num_compute_sms = gpu_workers(tiles, gpu.sms);
    config.num_stages = loop.stages;
    add(configs, config);
  }
  return configs;
}

std::vector<UlyssesConfig> gpu_a2a_gemm_configs(const UlyssesDesc& d, const GpuTarget& gpu) {
  std::vector<UlyssesConfig> configs = {default_a2a_gemm_config(d, gpu)};
  if (!is_half(d.dtype, d.weight_dtype)) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const Loop& loop : loops_for(run_rows)) {
    if (d.k / d.world_size % loop.tile.bk != 0) continue;
    for (std::int64_t pieces : {1, 2, 4, 8}) {  // that a rank's rows come in
      UlyssesConfig config = configs.front();
      config.tile = loop.tile;
      config.num_compute_sms = gpu_workers(num_tiles(run_rows, d.n, loop.tile), gpu.sms);
      config.num_stages = loop.stages;
      config.comm_rows = copied_rows(d, loop.tile.bm, ceil_div(run_rows, pieces));
      for (int queues : {1, std::min(std::max(d.world_size - 1, 1), 3)}) {
        config.num_queues = queues;
        add(configs, config);
      }
    }
  }
  return configs;
}

std::vector<CollectiveConfig> gpu_configs(const CollectiveDesc& d, Collective collective,
                                          AllReduceKind kind, const GpuTarget& gpu) {
  bool two_shot = collective == Collective::kAllReduce && kind == AllReduceKind::kTwoShot;
  bool may_push = collective != Collective::kAllReduce || two_shot;
  std::vector<CollectiveConfig> configs;
  if (may_push) {
    configs.push_back(two_shot ? default_two_shot_config(d, gpu) : default_config(d, gpu));
  }
  auto add_all = [&](const std::vector<CollectiveConfig>& more) {
    for (const CollectiveConfig& config : more) add(configs, config);
  };
  // The all-gather's engines would copy the own rows within the rank, which graphs refuse.
  add_all(gpu_candidates(d, two_shot ? 2 : 1, two_shot, gpu));
  // A packet's words take registers of their own.
  if (collective != Collective::kAllGather && (may_push || kind == AllReduceKind::kOneShot)) {
    std::int64_t rows = may_push ? ceil_div(d.m, std::int64_t{d.world_size}) : d.m;
    add_all(gpu_row_candidates(d, rows, two_shot ? 2 : 1, gpu));
  }
  if (may_push) add_all(gpu_push_candidates(d, two_shot, gpu));
  for (CollectiveConfig& config : configs) config.all_reduce = kind;
  return configs;
}

}  // namespace stretto
