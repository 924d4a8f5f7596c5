#include "stretto/ops/ag_gemm/ag_columns_sm90.h"

#include <algorithm>
#include <vector>

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {
namespace {

// Rows that the SMs multiply at the same time.
std::int64_t wave_rows(const AgColumnsDesc& d, const AgColumnsConfig& cfg) {
  std::int64_t row_tiles = cfg.loop.num_compute_sms / ceil_div(d.n, cfg.loop.tile.bn);
  return std::max<std::int64_t>(row_tiles, 1) * cfg.loop.tile.bm;
}

AgColumnsConfig gpu_config(const AgColumnsDesc& d, Gather gather, int sms) {
  GpuLoopDesc of_rank = loop_desc(d, d.m, sms);
  of_rank.k = d.k / d.world_size;
  MainLoop loop = gpu_loop(of_rank);
  // Beside the sums of all ranks, the product of one.
  constexpr MainLoop kTwoSums{.tile = {128, 128, 128}, .num_stages = 6};
  if (d.scaling == Scaling::kRowWise && loop.tile.bn > kTwoSums.tile.bn) loop = kTwoSums;
  AgColumnsConfig cfg{.loop = {.tile = loop.tile, .raster = 4, .num_stages = loop.num_stages},
                      .gather = gather};
  // Long steps of few rows that would reach past a rank's columns.
  const std::int64_t line = 128 / static_cast<std::int64_t>(size_bytes(d.a_dtype));
  while (cfg.loop.tile.bk > line && d.k / d.world_size % cfg.loop.tile.bk != 0)
    cfg.loop.tile.bk /= 2;
  const std::int64_t tiles = ceil_div(d.m, cfg.loop.tile.bm) * ceil_div(d.n, cfg.loop.tile.bn);
  const std::int64_t most = std::max<std::int64_t>(most_copied_rows(1, d.k / d.world_size), 1);
  if (gather == Gather::kPush) {  // eight SMs are predicted to fill the links of an H200
    cfg.comm_rows = std::min({std::int64_t{32}, d.m, most});
    std::int64_t pushed = ceil_div(d.m, cfg.comm_rows) * std::max(d.world_size - 1, 1);
    cfg.num_gather_workers = gpu_workers(pushed, d.m <= kMostRowsAcross ? 16 : 8);
    cfg.loop.num_compute_sms = gpu_workers(tiles, sms - cfg.num_gather_workers);
  } else {  // few copies, each of which costs the host some calls
    constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    cfg.loop.num_compute_sms = gpu_workers(tiles, sms);
    std::int64_t row_bytes = d.k / d.world_size * static_cast<std::int64_t>(size_bytes(d.a_dtype));
    std::int64_t rows = std::max(kPieceBytes / row_bytes, wave_rows(d, cfg));
    cfg.comm_rows = std::min({ceil_div(rows, cfg.loop.tile.bm) * cfg.loop.tile.bm, d.m, most});
  }
  return grouped_by_waves(d, cfg);
}

}  // namespace

AgColumnsConfig grouped_by_waves(const AgColumnsDesc& d, AgColumnsConfig cfg) {
  cfg.comm_group =
      std::clamp<std::int64_t>(wave_rows(d, cfg) / cfg.comm_rows, 1, ceil_div(d.m, cfg.comm_rows));
  return cfg;
}

AgColumnsConfig default_config(const AgColumnsDesc& d, Target target, Gather gather) {
  if (target == Target::kCuda) return gpu_config(d, gather, target.sms());
  std::int64_t cols = std::max<std::int64_t>(d.k / d.world_size, 1);
  return {.loop = {.tile = scaled_tile(default_tile(d.m, d.n, cols), d.scaling)},
          .gather = gather,
          .comm_rows = std::clamp<std::int64_t>(ceil_div(d.m, std::int64_t{4}), 1, 256)};
}

AgColumnsConfig default_config(const AgColumnsDesc& d, Target target) {
  const bool push = target == Target::kCuda && d.m <= 2 * kMostRowsAcross;
  return default_config(d, target, push ? Gather::kPush : Gather::kSend);
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
  for (const MainLoop& loop : loops_for(d.m)) {
    for (const Transfer& t : transfers) {
      AgColumnsConfig config = configs.front();
      config.loop.tile = loop.tile;
      config.loop.num_stages = loop.num_stages;
      config.num_gather_workers = t.workers;
      config.comm_rows = std::min(t.rows, most);
      config.loop.num_compute_sms = gpu_workers(
          num_tiles(d.m, d.n, loop.tile), gpu.sms - (gather == Gather::kPush ? t.workers : 0));
      add(configs, grouped_by_waves(d, config));
    }
  }
  return configs;
}

}  // namespace stretto
