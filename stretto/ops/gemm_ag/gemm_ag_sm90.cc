#include "stretto/ops/gemm_ag/gemm_ag_sm90.h"

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {

GemmAgConfig default_config(const GemmAgDesc& d, Target target) {
  if (target == Target::kCpu)
    return {.loop = {.tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling)}};
  MainLoop loop = gpu_loop(d, d.m, target.sms());
  loop.num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), target.sms());
  loop.raster = 8;
  return {.loop = loop};
}

std::vector<GemmAgConfig> gpu_configs(const GemmAgDesc& d, const GpuTarget& gpu) {
  std::vector<GemmAgConfig> configs = {default_config(d, gpu)};
  if (!is_half(d.a_dtype, d.b_dtype)) return configs;
  for (const MainLoop& loop : loops_for(d.m)) {
    for (std::int64_t raster : {8, 2}) {
      add(configs,
          {.loop = {.tile = loop.tile,
                    .num_compute_sms = gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms),
                    .raster = raster,
                    .num_stages = loop.num_stages}});
    }
  }
  return configs;
}

}  // namespace stretto
