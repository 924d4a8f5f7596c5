#include "stretto/ops/ag_gemm/ag_gemm_sm90.h"

#include <algorithm>
#include <vector>

#include "stretto/ops/gemm/candidate_loops.h"

namespace stretto {
namespace {

// As many SMs push as few rows need to arrive in some microseconds, each a block to one rank.
AgGemmConfig gpu_config_across(const AgGemmDesc& d, int sms) {
  constexpr std::int64_t kBytesOfWorker = std::int64_t{64} * 1024, kMost = 16;
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size}), world = d.world_size;
  std::int64_t bytes = run_rows * d.k * static_cast<std::int64_t>(size_bytes(d.a_dtype)) * world;
  std::int64_t blocks =
      std::max<std::int64_t>(std::min(ceil_div(bytes, kBytesOfWorker), kMost) / world, 1);
  AgGemmConfig cfg{.loop = {.raster = 8}, .gather = Gather::kPush, .across = true};
  cfg.comm_rows = ceil_div(run_rows, blocks);
  cfg.num_gather_workers = gpu_workers(ceil_div(run_rows, cfg.comm_rows) * world, kMost);
  int left = sms - cfg.num_gather_workers;
  MainLoop loop = gpu_loop(d, d.m, left);
  // Where narrow tiles are several for an SM, one wide tile for most SMs is faster.
  constexpr MainLoop kWide{.tile = {64, 128, 64}, .num_stages = 6};
  const bool plain = d.scaling == Scaling::kNone && !d.swiglu && d.a_dtype == d.b_dtype &&
                     size_bytes(d.a_dtype) == 2;
  const std::int64_t wide = ceil_div(d.n, kWide.tile.bn);
  if (plain && d.m <= kWide.tile.bm && wide <= left && wide * 5 > left * 4) loop = kWide;
  cfg.loop.tile = loop.tile;
  cfg.loop.num_stages = loop.num_stages;
  cfg.loop.num_compute_sms =
      gpu_workers(ceil_div(d.m, cfg.loop.tile.bm) * ceil_div(d.n, cfg.loop.tile.bn), left);
  return cfg;
}

// What a tile of 256 columns becomes where an agent stores. 192 columns are faster unless their
// last wave of tiles leaves more SMs idle; then 256 columns with an agent are.
struct EpilogueWarp {
  GemmTile tile;
  int stages, stagger, store_slots;
};
constexpr EpilogueWarp kEpilogueWarp{{128, 192, 64}, 4, 2, 4},
    kWideEpilogueWarp{{128, 256, 64}, 3, 1, 4};
EpilogueWarp epilogue_warp(const AgGemmDesc& d, std::int64_t run_rows, int sms) {
  auto columns = [&](const GemmTile& tile) {
    return columns_of_sm(d.world_size * ceil_div(run_rows, tile.bm), d.n, tile.bn, sms);
  };
  bool middle = columns(kEpilogueWarp.tile) * 50 <= columns(kWideEpilogueWarp.tile) * 51;
  return middle ? kEpilogueWarp : kWideEpilogueWarp;
}

AgGemmConfig gpu_config(const AgGemmDesc& d, Gather gather, int sms) {
  bool few_of_all = d.world_size > 1 && d.m <= kMostRowsAcross && !d.gathered;
  if (gather == Gather::kPush && few_of_all) return gpu_config_across(d, sms);
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  bool few = run_rows <= kFewRows;  // of one rank: tiles do not reach into the next rank's
  MainLoop loop = gpu_loop(d, few ? run_rows : d.m, sms);
  bool halves = d.a_dtype == d.b_dtype && size_bytes(d.a_dtype) == 2 && !d.swiglu;
  const bool has_epilogue_warp =
      halves && size_bytes(d.c_dtype) == 2 && !few && loop.tile.bn == 256;
  const EpilogueWarp agent = epilogue_warp(d, run_rows, sms);
  if (has_epilogue_warp) loop = {.tile = agent.tile, .num_stages = agent.stages};
  const GemmTile& tile = loop.tile;
  AgGemmConfig cfg{.loop = {.tile = tile, .raster = 8, .num_stages = loop.num_stages},
                   .gather = gather};
  std::int64_t row_tiles = ceil_div(run_rows, tile.bm), peers = d.world_size - 1;
  std::int64_t quarter = ceil_div(run_rows, std::int64_t{4});
  int pushing = 0;
  if (gather != Gather::kPush) {
    // A transfer costs a few calls of the host and two small copies more, so there are few. One
    // queue sends, so that the rows needed first come first.
    bool send = gather == Gather::kSend;
    cfg.num_gather_workers = send ? 1 : static_cast<int>(std::clamp<std::int64_t>(peers, 1, 3));
    constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    std::int64_t piece = kPieceBytes / (d.k * static_cast<std::int64_t>(size_bytes(d.a_dtype)));
    std::int64_t most = most_copied_rows(tile.bm, d.k), rows = std::max(quarter, send ? piece : 1);
    if (most == 0) most = most_copied_rows(1, d.k);
    cfg.comm_rows = std::min({ceil_div(rows, tile.bm) * tile.bm, run_rows, most});
    cfg.channels_per_rank = ceil_div(run_rows, cfg.comm_rows);
  } else {
    cfg.comm_rows = std::clamp<std::int64_t>(quarter, 1, tile.bm);
    cfg.channels_per_rank = std::clamp<std::int64_t>(run_rows / tile.bm, 1, 8);
    pushing = gpu_workers(ceil_div(run_rows, cfg.comm_rows) * std::max<std::int64_t>(peers, 1), 16);
    cfg.num_gather_workers = pushing;
  }
  std::int64_t tiles = d.world_size * row_tiles * ceil_div(d.n, tile.bn);
  cfg.loop.num_compute_sms = gpu_workers(tiles, sms - pushing - keeping_sms(d));
  if (halves && !few) cfg.loop.stagger = paying_stagger(tile, tiles, cfg.loop.num_compute_sms);
  if (has_epilogue_warp) {
    cfg.loop.stagger = agent.stagger;
    cfg.loop.store_slots = agent.store_slots;
  }
  // Wider ones spill (CUDA 13.0) where a rank's rows may end within a tile.
  bool masks = masks_ranks(d.world_size);
  const int widest = masks && !d.bias && !d.gathered ? 168 : 160;
  const MainLoop turns = busiest_ping_pong(
      d.world_size * row_tiles, d.n, ping_pong_widths(d.b_kn, widest), cfg.loop.num_compute_sms);
  if (has_epilogue_warp &&
      turns_pay(turns, d.world_size * row_tiles, d.n, tile, cfg.loop.num_compute_sms)) {
    cfg.loop = turns;
  }
  cfg.loop.raster = own_first_raster(d, cfg.loop.tile, cfg.loop.raster);
  return cfg;
}

}  // namespace

std::int64_t own_first_raster(const AgGemmDesc& d, const GemmTile& tile, std::int64_t raster) {
  const std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  return run_rows <= kFewRows ? raster : std::min(raster, ceil_div(run_rows, tile.bm));
}

AgGemmConfig default_config(const AgGemmDesc& d, Target target, Gather gather) {
  if (target == Target::kCuda) return fitted(d, gpu_config(d, gather, target.sms()));
  std::int64_t run_rows = ceil_div(d.m, std::int64_t{d.world_size});
  AgGemmConfig cfg{
      .loop = {.tile = scaled_tile(default_tile(d.m, d.n, d.k), d.scaling)},
      .gather = gather,
      .comm_rows = std::clamp<std::int64_t>(ceil_div(run_rows, std::int64_t{4}), 1, 256),
      .channels_per_rank = 2};
  return fitted(d, cfg);
}

// Engines that send, since among four GPUs engines that fetch are slower.
AgGemmConfig default_config(const AgGemmDesc& d, Target target) {
  if (target == Target::kCpu) return default_config(d, target, Gather::kPull);
  // Pushing SMs are for tiles across the ranks' rows, which do not leave the gathered ones; with
  // these, tiles of more than few rows spill beside them (NVRTC 13.0).
  const bool few = ceil_div(d.m, std::int64_t{d.world_size}) <= kFewRows;
  bool push = d.m <= kMostRowsAcross && (!d.gathered || few);
  return default_config(d, target, push ? Gather::kPush : Gather::kSend);
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
    for (const MainLoop& loop : loops_for(d.m)) {
      AgGemmConfig config = first;
      config.loop.tile = loop.tile;
      config.loop.num_compute_sms =
          gpu_workers(num_tiles(d.m, d.n, loop.tile), gpu.sms - first.num_gather_workers);
      config.loop.num_stages = loop.num_stages;
      add(configs, fitted(d, config));
    }
  }
  for (const MainLoop& loop : loops_for(d.m)) {
    for (const Transfer& t : transfers) {
      AgGemmConfig config = first;
      config.across = false;
      config.loop.tile = loop.tile;
      config.loop.num_compute_sms = gpu_workers(
          num_tiles(d.m, d.n, loop.tile), gpu.sms - (takes_sms ? t.workers : 0) - keeping_sms(d));
      config.num_gather_workers = t.workers;
      config.comm_rows = std::min({t.rows, run_rows, most_copied_rows(1, d.k)});
      config.channels_per_rank = channels_of(run_rows, loop.tile.bm, t.channels);
      config.loop.num_stages = loop.num_stages;
      config.loop.raster = own_first_raster(d, loop.tile, 8);
      // Tiles of 256 columns apart spill without an agent that stores (CUDA 13.0).
      config.loop.stagger = loop.tile.bn == 256
                                ? 0
                                : paying_stagger(loop.tile, num_tiles(d.m, d.n, loop.tile),
                                                 config.loop.num_compute_sms);
      config.loop.store_slots = 0;
      config.loop.num_consumers = 1;
      // One row tile a column takes registers, too: of 512 x 4096 x 4096 on four ranks.
      if (takes_sms && loop.tile.bn == 256 && config.loop.raster == 1) continue;
      add(configs, fitted(d, config));
    }
  }
  return configs;
}

}  // namespace stretto
