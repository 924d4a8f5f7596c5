#include "stretto/ops/moe/expert_layers_sm90.h"

#include <algorithm>

#include "stretto/ops/gemm/candidate_loops.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/operator/config_list.h"

namespace stretto {
namespace {

// Rows of an expert up to which the weights take the time, and tiles have 64 rows.
constexpr std::int64_t kFewOfAnExpert = 64;
constexpr int kStages = 4;

template <typename Desc>
std::int64_t rows_of_expert(const Desc& d) {
  return ceil_div(d.shape.m * d.shape.top_k, d.shape.num_experts);
}

template <typename Desc>
std::int64_t tokens_of_rank(const Desc& d) {
  return d.shape.rows_per_rank();
}

std::int64_t token_bytes(const AgGroupedDesc& d) { return d.k * size_bytes(d.a_dtype); }

// Whether copies into the order of the tiles, which TMA then loads, take less than picked rows cost
// a product: where an expert has many rows, and tiles for many SMs, since the first copies come
// before all products. Of two ranks half as many are enough: half of the rows are there.
bool pays_to_sort(const AgGroupedDesc& d, const AgGroupedConfig& c, std::int64_t rows_of_expert,
                  int sms) {
  const bool two = d.shape.world_size == 2;
  const std::int64_t many_rows = two ? 512 : 1024;
  if (size_bytes(d.a_dtype) != 2 || d.b_dtype != d.a_dtype || d.k % kSortCols != 0) return false;
  std::int64_t tiles = ceil_div(rows_of_expert, c.loop.tile.bm) * ceil_div(d.n, c.loop.tile.bn);
  const bool many_tiles = two ? 2 * tiles >= sms : 5 * tiles >= 4 * sms;
  return rows_of_expert >= many_rows && many_tiles;
}

}  // namespace

void send_by(const AgGroupedDesc& d, int num_queues, AgGroupedConfig& c) {
  const std::int64_t share = d.shape.rows_per_rank();
  c.num_copy_queues = num_queues;
  if (num_queues > 0) {
    c.comm_rows = std::clamp<std::int64_t>(most_copied_rows(1, d.k), 1, share);
    return;
  }
  // All push some, if there are as many, and no more at a time than two warpgroups hold.
  constexpr std::int64_t kPushedBytes = 16 << 10;
  const std::int64_t held = std::max<std::int64_t>(kPushedBytes / token_bytes(d), 1);
  c.comm_rows = std::min(held, ceil_div(share, std::int64_t{c.loop.num_compute_sms}));
}

AgGroupedConfig default_config(const AgGroupedDesc& d, Target target) {
  std::int64_t share = d.shape.rows_per_rank();
  std::int64_t mean_rows =
      ceil_div(d.shape.m * d.shape.top_k, d.shape.num_experts);  // of an expert
  if (target == Target::kCpu) {
    GemmTile tile = default_tile(d.shape.m, d.n, d.k);
    tile.bm = std::clamp<std::int64_t>(ceil_div(mean_rows, std::int64_t{16}) * 16, 16, 128);
    tile.bm = std::min(tile.bm, d.shape.m * d.shape.top_k);
    return {.loop = {.tile = tile},
            .comm_rows = std::clamp<std::int64_t>(ceil_div(share, std::int64_t{2}), 1, 256)};
  }
  MainLoop loop = gpu_loop(d, std::max(2 * kFewRows, d.shape.m * d.shape.top_k), target.sms());
  if (mean_rows <= 64) loop.tile.bm = 64;
  AgGroupedConfig c{.loop = {.tile = loop.tile, .raster = 4, .num_stages = loop.num_stages}};
  c.loop.num_compute_sms =
      gpu_workers(tiles_of(d, c).num_tiles() * ceil_div(d.n, c.loop.tile.bn), target.sms());
  // One queue, so that the rows needed first come first.
  send_by(d, are_pushed(tiles_of(d, c), d.k) ? 0 : 1, c);
  if (pays_to_sort(d, c, mean_rows, target.sms())) c.sort_rows = kSortRows, c.sort_cols = kSortCols;
  return c;
}

MoeLayerConfig default_config(const MoeLayerDesc& d, Target target) {
  MoeLayerConfig c{default_config(first_layer(d), target), default_config(second_layer(d), target)};
  AgGroupedConfig& first = c.first;
  GroupedRsConfig& second = c.second;
  first.sort_rows = first.sort_cols = 0;  // beside both layers' products it takes longer
  second.loop.tile.bm = first.loop.tile.bm = std::min(first.loop.tile.bm, second.loop.tile.bm);
  // Beside pushes the sums of large tiles spill.
  constexpr std::int64_t kSmallTile = 64;
  if (first.num_copy_queues == 0 && first.loop.tile.bm > kSmallTile)
    send_by(first_layer(d), 1, first);
  if (target == Target::kCuda && first.loop.tile.bk == second.loop.tile.bk) {
    // Slices of both layers that are alike go through the same pipes.
    second.num_products = 2;
    second.loop.tile.bn = second.reduce_cols = 2 * first.loop.tile.bn;
  }
  first.loop.num_compute_sms = second.loop.num_compute_sms =
      std::max(first.loop.num_compute_sms, second.loop.num_compute_sms);
  first.loop.num_stages = second.loop.num_stages =
      std::min(first.loop.num_stages, second.loop.num_stages);
  if (target == Target::kCuda) {
    sum_at_end(second_layer(d), second);
  } else {
    second.reduce_rounds = rounds_of_turns(second_layer(d), second, second.reduce_rows, 1);
    second.num_reduce_sms = 0;
  }
  return c;
}

EpMoeLayerConfig with_exchange(const EpMoeLayerDesc& d, const MoeLayerConfig& layers,
                               Target target) {
  // More spill beside the exchange, of three ranks and more than four from fewer on.
  const std::int64_t most_rows = d.shape.world_size <= 4 && d.shape.world_size != 3 ? 24 : 8;
  EpMoeLayerConfig c{.first = layers.first, .second = layers.second, .tables = {}, .order = {}};
  sum_at_end(second_layer(own_part(d)), c.second, most_rows);
  c.first.num_copy_queues = 0;
  // Half of the workers push (exchange()).
  const std::int64_t pushers = std::max(c.first.loop.num_compute_sms / 2, 1);
  c.first.comm_rows = std::min<std::int64_t>(8, ceil_div(d.shape.rows_per_rank(), pushers));
  c.tell_tokens = std::min<std::int64_t>(64, d.shape.rows_per_rank());
  c.order = default_order(tiles_of(d, c), target,
                          {.ffn = ceil_div(d.ffn, std::int64_t{d.expert_groups})});
  c.tables = default_config(ExpertTablesDesc{.tiles = tiles_of(d, c), .order = c.order}, target,
                            c.first.loop.num_compute_sms);
  // Of several blocks in turn what they have in common would take all of the role's registers.
  c.tables.part_blocks = 1;
  return c;
}

EpMoeLayerConfig default_config(const EpMoeLayerDesc& d, Target target) {
  MoeLayerConfig layers = default_config(own_part(d), target);
  GemmTile &first = layers.first.loop.tile, &second = layers.second.loop.tile;
  // Remainders by five and seven ranks take registers that wider tiles would spill, and so do
  // biases.
  bool remainders = d.shape.world_size > 4 && d.shape.world_size % 2 == 1;
  bool narrow = remainders || d.biases;
  if (target == Target::kCuda && narrow && first.bn == 128 && second.bn == 256) {
    first.bn = 64;
    second.bn = layers.second.reduce_cols = 128;
  }
  if (target == Target::kCuda && remainders && d.shape.world_size > 5) {
    first.bm = second.bm = std::min<std::int64_t>(first.bm, 64);
  }
  EpMoeLayerConfig c = with_exchange(d, layers, target);
  // Tables in several classes would spill there by seven and more.
  if (target == Target::kCuda && remainders && d.shape.world_size > 5) c.order = {.in_step = false};
  return c;
}

std::vector<AgGroupedConfig> gpu_configs(const AgGroupedDesc& d, const GpuTarget& gpu) {
  struct Choice {
    std::int64_t raster;
    int queues;         // 0: pushes
    std::int64_t sort;  // rows that are copied at a time into the order of the tiles
    bool skip = false;  // halves of tiles that hold no token
  };
  constexpr Choice kChoices[] = {{4, 1, 0},         {8, 1, 0},
                                 {8, 3, 0},         {4, 1, kSortRows},
                                 {8, 1, kSortRows}, {8, 1, kSortRows / 2},
                                 {8, 3, kSortRows}, {8, 1, 0, true},
                                 {8, 3, 0, true},   {8, 3, kSortRows, true},
                                 {4, 0, 0},         {8, 0, 0, true}};
  const AgGroupedConfig base = default_config(d, gpu);
  std::vector<AgGroupedConfig> out = {base};
  if (!is_half(d.a_dtype, d.b_dtype) || rows_of_expert(d) <= kFewOfAnExpert) return out;
  for (const Choice& c : kChoices) {
    AgGroupedConfig made = base;
    made.loop.tile = {.bm = 128, .bn = 128, .bk = 64};
    made.loop.num_stages = kStages;
    if (c.sort > 0 && d.k % kSortCols != 0) continue;
    if (c.skip && d.k <= made.loop.tile.bk) continue;
    if (c.queues == 0 && d.shape.world_size == 1) continue;
    made.loop.raster = c.raster;
    made.loop.num_compute_sms = gpu.sms;
    send_by(d, c.queues, made);
    made.sort_rows = c.sort;
    made.sort_cols = c.sort > 0 ? kSortCols : 0;
    made.skip_dead_rows = c.skip;
    add(out, made);
  }
  return out;
}

std::vector<GroupedRsConfig> gpu_configs(const GroupedRsDesc& d, const GpuTarget& gpu) {
  const GroupedRsConfig base = default_config(d, gpu);
  std::vector<GroupedRsConfig> out = {base};
  if (!is_half(d.a_dtype, d.b_dtype) || rows_of_expert(d) <= kFewOfAnExpert) return out;
  GroupedRsConfig wide{.loop = {.tile = {.bm = 128, .bn = 256, .bk = 64},
                                .num_compute_sms = gpu.sms,
                                .raster = 4,
                                .num_stages = kStages},
                       .num_reduce_sms = 0,
                       .reduce_cols = 256};
  // Beside those who multiply. Rows of products under way: more spill with more ranks.
  const bool beside = !d.all_reduce || base.num_reduce_sms == 0;
  GroupedRsConfig usual = wide;
  sum_beside(d, usual);
  for (std::int64_t blocks : {4, 8, 16}) {
    GroupedRsConfig made = wide;
    made.block_tiles = tiles_of_block(d.n, made.loop.tile.bn, blocks);
    if (d.all_reduce && d.shape.world_size > 2 && made.block_tiles == 1) continue;  // spills
    made.reduce_rows =
        std::min<std::int64_t>(std::max<std::int64_t>(24 / d.shape.top_k, 1), tokens_of_rank(d));
    const bool most = d.shape.world_size > 2 || d.all_reduce;  // more spill
    if (most) made.reduce_rows = std::min(made.reduce_rows, usual.reduce_rows);
    made.reduce_rounds = rounds_of_turns(d, made, made.reduce_rows, 1);
    if (beside) add(out, made);
  }
  GroupedRsConfig at_end = wide;
  sum_at_end(d, at_end);
  add(out, at_end);
  if (!can_sum_on_sms(d)) return out;
  for (auto [sms, blocks] : {std::pair{12, 8}, {20, 8}, {28, 8}, {40, 8}, {28, 4}, {40, 4}}) {
    GroupedRsConfig made = wide;
    sum_on_sms(d, made, sms, blocks);
    add(out, made);
  }
  return out;
}

std::vector<MoeLayerConfig> gpu_configs(const MoeLayerDesc& d, const GpuTarget& gpu) {
  constexpr std::int64_t kAtEnd = 0;  // sums of all blocks after all products
  struct Choice {
    std::int64_t raster, second_raster, blocks;
    std::int64_t sort = 0;  // rows that are copied at a time into the order of the tiles
    int queues = 1;         // 0: pushes
  };
  constexpr Choice kChoices[] = {{4, 4, kAtEnd},
                                 {8, 4, kAtEnd},
                                 {8, 8, kAtEnd},
                                 {4, 4, kAtEnd, kSortRows},
                                 {8, 4, kAtEnd, kSortRows},
                                 {8, 8, 8},
                                 {8, 8, 4},
                                 {8, 8, 2},
                                 {4, 4, 4},
                                 {4, 4, 2},
                                 {8, 8, 4, kSortRows},
                                 {8, 8, 2, kSortRows},
                                 {4, 4, kAtEnd, 0, 0}};
  const MoeLayerConfig base = default_config(d, gpu);
  std::vector<MoeLayerConfig> out = {base};
  // Their sums have all other ranks' rows in registers.
  if (size_bytes(d.dtype) != 2 || d.shape.world_size > 4) return out;
  const bool few = rows_of_expert(d) <= kFewOfAnExpert;
  for (const Choice& c : kChoices) {
    if (c.sort > 0 && (few || d.shape.world_size > 2 || d.hidden % kSortCols != 0))
      continue;  // spills
    // Faster than picked rows on one GPU, slower on two.
    if (c.sort > 0 && c.blocks == kAtEnd && d.shape.world_size > 1) continue;
    MoeLayerConfig made = base;
    auto& [first, second] = made;
    const std::int64_t bm = few ? 64 : 128;
    first.loop.tile = {.bm = bm, .bn = 128, .bk = 64};
    second.loop.tile = {.bm = bm, .bn = 256, .bk = 64};
    first.loop.num_stages = second.loop.num_stages = kStages;
    first.loop.num_compute_sms = second.loop.num_compute_sms = gpu.sms;
    if (c.queues == 0 && (d.shape.world_size == 1 || !few)) continue;  // spills
    send_by(first_layer(d), c.queues, first);
    first.loop.raster = c.raster;
    second.loop.raster = c.second_raster;
    first.sort_rows = c.sort;
    first.sort_cols = c.sort > 0 ? kSortCols : 0;
    second.num_products = 2;
    second.reduce_cols = second.loop.tile.bn;
    if (c.blocks == kAtEnd) {
      sum_at_end(second_layer(d), second);
      add(out, made);
      continue;
    }
    second.block_tiles = tiles_of_block(d.hidden, second.loop.tile.bn, c.blocks);
    second.last_blocks = 0;
    second.last_rows = second.last_rounds = 1;
    // Of four warps, or of three where all slots are loaded by TMA.
    second.reduce_rows = c.sort > 0 ? std::max<std::int64_t>(24 / d.shape.top_k, 1)
                                    : std::clamp<std::int64_t>(32 / d.shape.top_k, 1, 8);
    second.reduce_rows = std::min(second.reduce_rows, tokens_of_rank(d));
    second.reduce_rounds = rounds_of_turns(second_layer(d), second, second.reduce_rows, 1);
    add(out, made);
  }
  return out;
}

std::vector<EpMoeLayerConfig> gpu_configs(const EpMoeLayerDesc& d, const GpuTarget& gpu) {
  std::vector<EpMoeLayerConfig> out = {default_config(d, gpu)};
  for (const MoeLayerConfig& layers : gpu_configs(own_part(d), gpu)) {
    bool at_end = layers.second.last_blocks > 0 && layers.first.sort_rows == 0;
    if (!at_end) continue;
    EpMoeLayerConfig made = with_exchange(d, layers, gpu);
    // An expert's weights are read once for each class, which is what takes time of few rows, whose
    // kernels with several classes spill on two ranks.
    constexpr std::int64_t kFewRows = 64;  // of a tile
    made.order = {.in_step = false};
    add(out, made);
    if (layers.first.loop.tile.bm <= kFewRows) continue;
    made.order = order_in_classes(tiles_of(d, made), gpu,
                                  {.ffn = ceil_div(d.ffn, std::int64_t{d.expert_groups})});
    add(out, made);
  }
  return out;
}

}  // namespace stretto
