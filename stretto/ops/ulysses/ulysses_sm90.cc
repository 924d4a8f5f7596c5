#include "stretto/ops/ulysses/ulysses_sm90.h"

#include <algorithm>
#include <vector>

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {
namespace {

// The longest step that divides a rank's columns.
std::int64_t step_of(const UlyssesDesc& d, std::int64_t bk) {
  while (d.k / d.world_size % bk != 0) bk /= 2;
  return std::max<std::int64_t>(bk, 1);
}

}  // namespace

UlyssesConfig default_gemm_a2a_config(const UlyssesDesc& d, Target target) {
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size}), cols = d.n / d.world_size;
  if (target == Target::kCpu) return {.loop = {.tile = default_tile(run_rows, cols, d.k)}};
  GpuLoopDesc of_run = loop_desc(d, run_rows, target.sms());
  of_run.n = cols;
  MainLoop loop = gpu_loop(of_run);
  std::int64_t tiles = ceil_div(run_rows, loop.tile.bm) * ceil_div(cols, loop.tile.bn);
  return {.loop = {.tile = loop.tile,
                   .num_compute_sms = gpu_workers(tiles * d.world_size, target.sms()),
                   .raster = 8,
                   .num_stages = loop.num_stages}};
}

UlyssesConfig default_a2a_gemm_config(const UlyssesDesc& d, Target target) {
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  std::int64_t quarter = ceil_div(run_rows, std::int64_t{4});
  UlyssesConfig cfg{.loop = {.tile = default_tile(run_rows, d.n, d.k / d.world_size)}};
  if (target == Target::kCuda) {
    MainLoop loop = gpu_loop(d, run_rows, target.sms());
    std::int64_t tiles = ceil_div(run_rows, loop.tile.bm) * ceil_div(d.n, loop.tile.bn);
    cfg = {.loop = {.tile = loop.tile,
                    .num_compute_sms = gpu_workers(tiles, target.sms()),
                    .raster = 8,
                    .num_stages = loop.num_stages},
           .num_queues = std::clamp(d.world_size - 1, 1, 3)};
  }
  cfg.loop.tile.bk = step_of(d, cfg.loop.tile.bk);
  cfg.comm_rows = copied_rows(d, cfg.loop.tile.bm, quarter);
  return cfg;
}

std::vector<UlyssesConfig> gpu_gemm_a2a_configs(const UlyssesDesc& d, const GpuTarget& gpu) {
  std::vector<UlyssesConfig> configs = {default_gemm_a2a_config(d, gpu)};
  if (!is_half(d.dtype, d.weight_dtype)) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const MainLoop& loop : loops_for(run_rows)) {
    UlyssesConfig config = configs.front();
    config.loop.tile = loop.tile;
    std::int64_t tiles = num_tiles(run_rows, d.n / d.world_size, loop.tile) * d.world_size;
    config.loop.num_compute_sms = gpu_workers(tiles, gpu.sms);
    config.loop.num_stages = loop.num_stages;
    add(configs, config);
  }
  return configs;
}

std::vector<UlyssesConfig> gpu_a2a_gemm_configs(const UlyssesDesc& d, const GpuTarget& gpu) {
  std::vector<UlyssesConfig> configs = {default_a2a_gemm_config(d, gpu)};
  if (!is_half(d.dtype, d.weight_dtype)) return configs;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  for (const MainLoop& loop : loops_for(run_rows)) {
    if (d.k / d.world_size % loop.tile.bk != 0) continue;
    for (std::int64_t pieces : {1, 2, 4, 8}) {  // that a rank's rows come in
      UlyssesConfig config = configs.front();
      config.loop.tile = loop.tile;
      config.loop.num_compute_sms = gpu_workers(num_tiles(run_rows, d.n, loop.tile), gpu.sms);
      config.loop.num_stages = loop.num_stages;
      config.comm_rows = copied_rows(d, loop.tile.bm, ceil_div(run_rows, pieces));
      for (int queues : {1, std::min(std::max(d.world_size - 1, 1), 3)}) {
        config.num_queues = queues;
        add(configs, config);
      }
    }
  }
  return configs;
}

}  // namespace stretto
