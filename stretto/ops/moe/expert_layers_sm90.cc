#include "stretto/ops/moe/expert_layers_sm90.h"

#include <algorithm>

#include "stretto/ops/operator/config_list.h"

namespace stretto {
namespace {

// Rows of an expert up to which the weights take the time, and tiles have 64 rows.
constexpr std::int64_t kFewOfAnExpert = 64;
constexpr int kStages = 4;

template <typename Desc>
std::int64_t rows_of_expert(const Desc& d) {
  return ceil_div(d.m * d.top_k, d.num_experts);
}

template <typename Desc>
std::int64_t tokens_of_rank(const Desc& d) {
  return ceil_div(d.m, std::int64_t{d.world_size});
}

}  // namespace

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
    made.tile = {.bm = 128, .bn = 128, .bk = 64};
    made.num_stages = kStages;
    if (c.sort > 0 && d.k % kSortCols != 0) continue;
    if (c.skip && d.k <= made.tile.bk) continue;
    if (c.queues == 0 && d.world_size == 1) continue;
    made.raster = c.raster;
    made.num_compute_sms = gpu.sms;
    send_by(d, c.queues, made);
    made.sort_rows = c.sort;
    made.sort_cols = c.sort > 0 ? kSortCols : 0;
    made.skip_empty = c.skip;
    add(out, made);
  }
  return out;
}

std::vector<GroupedRsConfig> gpu_configs(const GroupedRsDesc& d, const GpuTarget& gpu) {
  const GroupedRsConfig base = default_config(d, gpu);
  std::vector<GroupedRsConfig> out = {base};
  if (!is_half(d.a_dtype, d.b_dtype) || rows_of_expert(d) <= kFewOfAnExpert) return out;
  GroupedRsConfig wide{.tile = {.bm = 128, .bn = 256, .bk = 64},
                       .num_compute_sms = gpu.sms,
                       .num_stages = kStages,
                       .raster = 4,
                       .num_reduce_sms = 0,
                       .reduce_cols = 256};
  // Beside those who multiply. Rows of products under way: more spill with more ranks.
  const bool beside = !d.all_reduce || base.num_reduce_sms == 0;
  GroupedRsConfig usual = wide;
  sum_beside(d, usual);
  for (std::int64_t blocks : {4, 8, 16}) {
    GroupedRsConfig made = wide;
    made.block_tiles = tiles_of_block(d.n, made.tile.bn, blocks);
    if (d.all_reduce && d.world_size > 2 && made.block_tiles == 1) continue;  // spills
    made.reduce_rows =
        std::min<std::int64_t>(std::max<std::int64_t>(24 / d.top_k, 1), tokens_of_rank(d));
    const bool most = d.world_size > 2 || d.all_reduce;  // more spill
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
  if (size_bytes(d.dtype) != 2 || d.world_size > 4) return out;
  const bool few = rows_of_expert(d) <= kFewOfAnExpert;
  for (const Choice& c : kChoices) {
    if (c.sort > 0 && (few || d.world_size > 2 || d.hidden % kSortCols != 0)) continue;  // spills
    // On one GPU 1 to 3 % faster than picked rows with 32 experts, on two 2 to 6 % slower.
    if (c.sort > 0 && c.blocks == kAtEnd && d.world_size > 1) continue;
    MoeLayerConfig made = base;
    auto& [first, second] = made;
    const std::int64_t bm = few ? 64 : 128;
    first.tile = {.bm = bm, .bn = 128, .bk = 64};
    second.tile = {.bm = bm, .bn = 256, .bk = 64};
    first.num_stages = second.num_stages = kStages;
    first.num_compute_sms = second.num_compute_sms = gpu.sms;
    if (c.queues == 0 && (d.world_size == 1 || !few)) continue;  // spills
    send_by(first_layer(d), c.queues, first);
    first.raster = c.raster;
    second.raster = c.second_raster;
    first.sort_rows = c.sort;
    first.sort_cols = c.sort > 0 ? kSortCols : 0;
    second.num_products = 2;
    second.reduce_cols = second.tile.bn;
    if (c.blocks == kAtEnd) {
      sum_at_end(second_layer(d), second);
      add(out, made);
      continue;
    }
    second.block_tiles = tiles_of_block(d.hidden, second.tile.bn, c.blocks);
    second.last_blocks = 0;
    second.last_rows = second.last_rounds = 1;
    // Of four warps, or of three where all slots are loaded by TMA.
    second.reduce_rows = c.sort > 0 ? std::max<std::int64_t>(24 / d.top_k, 1)
                                    : std::clamp<std::int64_t>(32 / d.top_k, 1, 8);
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
    if (layers.first.tile.bm <= kFewRows) continue;
    made.order = order_in_classes(tiles_of(d, made), gpu,
                                  {.ffn = ceil_div(d.ffn, std::int64_t{d.expert_groups})});
    add(out, made);
  }
  return out;
}

}  // namespace stretto
