#include "stretto/ops/gemm/gemm_sm90.h"

#include <vector>

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {
namespace {

// Products of e4m3 factors with scales of rows take tiles of 192 columns whose warpgroups end apart
// and leave their stores to an agent, where these keep the SMs as busy as `loop`'s tiles do, but
// for some per cent.
bool set_apart(const GemmDesc& d, const GemmTile& tile, int sms, GemmConfig& config) {
  constexpr GemmTile kApart{.bm = 128, .bn = 192, .bk = 128};
  constexpr double kMoreTime = 1.03;
  auto waves = [&](const GemmTile& t) {
    std::int64_t tiles = ceil_div(d.m, t.bm) * ceil_div(d.n, t.bn);
    return static_cast<double>(ceil_div(tiles, std::int64_t{sms}) * t.bn);
  };
  std::int64_t tiles = ceil_div(d.m, kApart.bm) * ceil_div(d.n, kApart.bn);
  bool several = tiles >= 4 * sms;
  if (!several || tile.bm != kApart.bm || waves(kApart) > kMoreTime * waves(tile)) return false;
  config = {.loop = {.tile = kApart,
                     .num_compute_sms = sms,
                     .raster = 8,
                     .num_stages = 4,
                     .stagger = 3,
                     .store_slots = 4}};
  return true;
}

// The same with several SMs to a tile.
void add_split(std::vector<GemmConfig>& configs, const GemmDesc& d, int num_sms) {
  const std::vector<GemmConfig> whole = configs;
  for (const GemmConfig& config : whole) {
    // Wider ones leave no registers for what others have summed.
    bool other = config.loop.cluster_size > 1 || config.loop.raster == 1 || config.loop.stagger > 0;
    if (other || config.loop.tile.bn > 128) continue;
    const std::int64_t tiles = num_tiles(d.m, d.n, config.loop.tile);
    for (int parts : paying_splits(tiles, ceil_div(d.k, config.loop.tile.bk), num_sms)) {
      GemmConfig split = config;
      split.split_k = parts;
      split.loop.num_compute_sms = gpu_workers(tiles * parts, num_sms);
      add(configs, split);
    }
  }
}

// Few rows, as many to a tile as there are, beside 64 or 128 of the weights: more tiles than with
// rows on the left, and none that is half empty.
void add_swapped(std::vector<GemmConfig>& configs, const GemmDesc& d, int num_sms) {
  constexpr std::int64_t kMostRows = 512;
  if (d.m > kMostRows || d.bias || d.residual) return;
  const std::int64_t pieces = ceil_div(d.m, kMostSwappedRows);
  const std::int64_t rows = ceil_div(ceil_div(d.m, pieces), std::int64_t{8}) * 8;
  std::vector<GemmConfig> swapped;
  for (std::int64_t cols : {64, 128}) {
    MainLoop loop = swapped_loop(rows, cols, 2);
    loop.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), num_sms);
    loop.raster = 8;
    swapped.push_back({.loop = loop, .swap_ab = true});
  }
  add_split(swapped, d, num_sms);
  for (GemmConfig& config : swapped) {
    // Parts of k store sums.
    if (config.split_k > 1) {
      config.loop.num_stages = swapped_loop(rows, config.loop.tile.bn, 4).num_stages;
    }
    if (config.loop.num_stages > 1) add(configs, config);
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
    add(configs,
        {.loop = {.tile = c.tile,
                  .num_compute_sms = gpu_workers(num_tiles(d.m, d.n, c.tile), num_sms / c.cluster),
                  .raster = c.raster,
                  .num_stages = c.stages,
                  .num_consumers = c.consumers,
                  .cluster_size = c.cluster,
                  .stagger = c.stagger,
                  .store_slots = c.store_slots}});
  }
}

}  // namespace

GemmConfig default_config(const GemmDesc& d, Target target) {
  if (target == Target::kCpu)
    return {.loop = {.tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling)}};
  const int sms = target.sms();
  MainLoop loop = gpu_loop(d, d.m, sms);
  // Products of bytes need their factors twice as fast: pairs of blocks share those of the weights,
  // where TMA loads them and there are rows enough.
  bool bytes = d.a_dtype == DType::kF8E4M3 && d.k % 16 == 0;
  GemmConfig apart;
  if (bytes && !d.swiglu && d.scaling != Scaling::kBlock && set_apart(d, loop.tile, sms, apart)) {
    return apart;
  }
  bool halves = d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && !d.swiglu;
  if (halves && size_bytes(d.c_dtype) == 2 && !d.residual && loop.tile.bm == 128) {
    std::int64_t row_tiles = ceil_div(d.m, loop.tile.bm);
    MainLoop turns = busiest_ping_pong(row_tiles, d.n, ping_pong_widths(d.b_kn), sms);
    if (turns_pay(turns, row_tiles, d.n, loop.tile, sms)) return {.loop = turns};
  }
  std::int64_t tiles = ceil_div(d.m, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
  int cluster = bytes && d.m > loop.tile.bm && tiles >= sms ? 2 : 1;
  int stagger = halves ? paying_stagger(loop.tile, tiles, sms) : 0;
  loop.tile.bm *= cluster;
  return {.loop = {.tile = loop.tile,
                   .num_compute_sms = gpu_workers(tiles / cluster, sms / cluster),
                   .raster = 8,
                   .num_stages = loop.num_stages,
                   .cluster_size = cluster,
                   .stagger = stagger}};
}

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
    // Where warpgroups take turns by default, pairs of blocks are predicted to be faster and were
    // not.
    if (s.cluster > 1 && configs.front().loop.num_consumers > 1) continue;
    std::int64_t tiles = num_tiles(d.m, d.n, s.tile);
    GemmConfig config{.loop = {.tile = s.tile,
                               .num_compute_sms = gpu_workers(tiles, gpu.sms / s.cluster),
                               .raster = 8,
                               .num_stages = s.stages,
                               .cluster_size = s.cluster}};
    GemmTile of_block = s.tile;
    of_block.bm /= s.cluster;
    for (int stagger : {0, paying_stagger(of_block, tiles, gpu.sms / s.cluster)}) {
      config.loop.stagger = stagger;
      config.loop.raster = 8;
      add(configs, config);
      if (s.tile.bn != 128 && s.tile.bn != 256) continue;
      config.loop.raster = 1;
      add(configs, config);
    }
  }
  for (std::int64_t width : ping_pong_widths(d.b_kn)) {
    if (d.m <= 64 || d.residual) break;
    MainLoop loop = ping_pong_loop(width, gpu.sms);
    loop.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms);
    add(configs, {.loop = loop});
  }
  add_split(configs, d, gpu.sms);
  add_swapped(configs, d, gpu.sms);
  return configs;
}

}  // namespace stretto
