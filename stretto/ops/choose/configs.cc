#include "stretto/ops/choose/configs.h"

#include <algorithm>
#include <string>

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

bool is_half(DType a, DType b) { return a == b && size_bytes(a) == 2; }

// Adds a config that is not there yet.
template <typename Config>
void add(std::vector<Config>& configs, const Config& config) {
  std::string text = to_string(config);
  bool known = std::any_of(configs.begin(), configs.end(),
                           [&](const Config& other) { return to_string(other) == text; });
  if (!known) configs.push_back(config);
}

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

}  // namespace

std::vector<GemmConfig> gpu_configs(const GemmDesc& d, int num_sms) {
  std::vector<GemmConfig> configs = {default_config(d, Target::kCuda)};
  if (!is_half(d.a_dtype, d.b_dtype) || d.swiglu) return configs;
  struct Shape {
    GemmTile tile;  // of the whole cluster
    int cluster, stages, consumers = 1;
  };
  constexpr Shape kShapes[] = {
      {{128, 256, 64}, 1, 4},   {{256, 256, 64}, 2, 4}, {{128, 192, 64}, 1, 4},
      {{64, 128, 64}, 1, 4, 2}, {{256, 128, 64}, 2, 6}, {{128, 128, 64}, 1, 6},
      {{128, 224, 64}, 1, 4},   {{128, 160, 64}, 1, 5}, {{128, 96, 64}, 1, 6},
      {{256, 192, 64}, 2, 4},   {{256, 160, 64}, 2, 5}, {{128, 160, 64}, 1, 2, 2},
      {{64, 256, 64}, 1, 2, 2}, {{64, 64, 64}, 1, 8},   {{64, 128, 64}, 1, 6},
      {{64, 256, 64}, 1, 4},    {{64, 96, 64}, 1, 6},
  };
  for (const Shape& s : kShapes) {
    bool flat = s.tile.bm == 64 && s.consumers == 1;
    if (flat != (d.m <= 64)) continue;
    std::int64_t tiles = num_tiles(d.m, d.n, s.tile);
    GemmConfig config{.tile = s.tile,
                      .num_compute_sms = gpu_workers(tiles, num_sms / s.cluster),
                      .raster = 8,
                      .num_stages = s.stages,
                      .num_consumers = s.consumers,
                      .cluster_size = s.cluster};
    add(configs, config);
    if (s.tile.bn != 128 && s.tile.bn != 256) continue;
    config.raster = 1;
    add(configs, config);
  }
  return configs;
}

std::vector<AgGemmConfig> gpu_configs(const AgGemmDesc& d, Gather gather, int num_sms) {
  std::vector<AgGemmConfig> configs = {default_config(d, Target::kCuda, gather)};
  if (!is_half(d.a_dtype, d.b_dtype) || d.swiglu) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  struct Transfer {
    int workers;
    std::int64_t rows, channels;
  };
  constexpr Transfer kTransfers[] = {{16, 32, 32}, {8, 32, 32}, {8, 128, 32},
                                     {4, 32, 32},  {4, 128, 8}, {2, 32, 32}};
  for (const Loop& loop : loops_for(d.m)) {
    for (const Transfer& t : kTransfers) {
      AgGemmConfig config = configs.front();
      config.tile = loop.tile;
      config.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), num_sms - t.workers);
      config.num_gather_workers = t.workers;
      config.comm_rows = std::min(t.rows, run_rows);
      config.channels_per_rank = channels_of(run_rows, loop.tile.bm, t.channels);
      config.num_stages = loop.stages;
      config.raster = 8;
      add(configs, config);
    }
  }
  return configs;
}

std::vector<GemmRsConfig> gpu_configs(const GemmRsDesc& d, Scatter scatter, int num_sms) {
  GemmRsConfig base = default_config(d, Target::kCuda);
  base.scatter = scatter;
  base.num_slots = scatter == Scatter::kEpilogue ? 2 : 1;
  int queues = scatter == Scatter::kCopyEngine ? std::max(base.num_copy_queues, 2) : 0;
  base.num_copy_queues = std::max(queues, 1);
  if (scatter == Scatter::kCopyEngine) {
    base.num_compute_sms =
        std::min(base.num_compute_sms, num_sms - base.num_reduce_sms - base.num_copy_queues);
  }
  std::vector<GemmRsConfig> configs = {base};
  if (!is_half(d.a_dtype, d.b_dtype)) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const Loop& loop : loops_for(run_rows)) {
    for (int reduce : {0, 4, 8, 16}) {
      for (std::int64_t channels : {8, 32}) {
        GemmRsConfig config = base;
        config.tile = loop.tile;
        config.num_reduce_sms = reduce;
        std::int64_t tiles = num_tiles(run_rows, d.n, loop.tile) * d.world_size;
        config.num_compute_sms = gpu_workers(tiles, num_sms - reduce - queues);
        config.channels_per_rank = channels_of(run_rows, loop.tile.bm, channels);
        config.num_stages = loop.stages;
        add(configs, config);
      }
    }
  }
  return configs;
}

std::vector<GemmArConfig> gpu_configs(const GemmArDesc& d, ReduceShots shots, int num_sms) {
  std::vector<GemmArConfig> configs = {default_config(d, shots, Target::kCuda)};
  if (!is_half(d.a_dtype, d.b_dtype)) return configs;
  bool one = shots == ReduceShots::kOne;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const Loop& loop : loops_for(one ? d.m : run_rows)) {
    std::int64_t tiles =
        one ? num_tiles(d.m, d.n, loop.tile) : num_tiles(run_rows, d.n, loop.tile) * d.world_size;
    for (int reduce : {0, 4, 8, 16, 32, 64}) {
      if (!one && reduce > 16) continue;
      GemmArConfig config = configs.front();
      config.tile = loop.tile;
      config.num_reduce_sms = reduce;
      config.num_compute_sms = gpu_workers(tiles, num_sms - reduce);
      config.channels = one ? tiles : channels_of(run_rows, loop.tile.bm, 32);
      config.num_stages = loop.stages;
      add(configs, config);
    }
  }
  return configs;
}

std::vector<CollectiveConfig> gpu_configs(const CollectiveDesc& d, Collective collective,
                                          AllReduceKind kind) {
  CollectiveConfig base = default_config(d, Target::kCuda);
  base.all_reduce = kind;
  std::vector<CollectiveConfig> configs = {base};
  bool one_role = collective != Collective::kAllReduce || kind == AllReduceKind::kOneShot;
  std::int64_t run_rows = std::max<std::int64_t>(d.m / d.world_size, 1);
  struct Choice {
    std::int64_t elements;
    int most;
  };
  for (Choice c : {Choice{2048, kGpuSms},
                   {4096, kGpuSms},
                   {8192, kGpuSms},
                   {16384, kGpuSms},
                   {4096, kGpuSms / 2},
                   {4096, kGpuSms / 4},
                   {8192, kGpuSms / 4}}) {
    CollectiveConfig config = base;
    config.tile_cols = std::min<std::int64_t>(d.n, c.elements);
    config.tile_rows = std::clamp<std::int64_t>(c.elements / d.n, 1, run_rows);
    std::int64_t tiles = ceil_div(d.m, config.tile_rows) * ceil_div(d.n, config.tile_cols);
    config.num_workers = gpu_workers(tiles, one_role ? c.most : c.most / 2);
    config.num_copy_sms = config.num_workers;
    add(configs, config);
  }
  return configs;
}

}  // namespace stretto
