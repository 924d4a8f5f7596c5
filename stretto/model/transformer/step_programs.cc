#include "stretto/model/transformer/step_programs.h"

#include <algorithm>

namespace stretto {
namespace {

template <typename Desc>
auto config_for(const Desc& d, Target target) {
  return default_config(d, target);
}

// Few rows read every weight once, so that bandwidth is all that counts: columns are cut so finely
// that every SM reads its share, and as much as shared memory holds is under way.
constexpr std::int64_t kFewRows = 64;
// Of the LM head that gather the logits.
constexpr int kFewCopySms = 4;

bool reads_weights(std::int64_t m, DType a, DType b, Target target) {
  return target == Target::kCuda && m <= kFewRows && a == b && size_bytes(a) == 2;
}

// Narrow tiles and many stages: what is under way of a row of weights then lies in one stretch of
// 1 to 2 KB, which HBM gives faster than many short ones.
GpuLoop streaming_loop(std::int64_t m, std::int64_t n, int num_sms, bool swiglu) {
  constexpr std::int64_t kStep = 8, kStageBytes = std::int64_t{200} * 1024, kMostStages = 24;
  constexpr std::int64_t kLeastCols = 32;
  const std::int64_t weights = swiglu ? 2 : 1, most_cols = 128 / weights;
  // Rows that are loaded; past 8, a slot has room for kFewRows all the same, which the tensor core
  // reads.
  GemmTile tile{.bm = std::min<std::int64_t>(ceil_div(m, std::int64_t{8}) * 8, kFewRows),
                .bn = kLeastCols,
                .bk = 64};
  auto columns_of_a_worker = [&](std::int64_t bn) {
    return ceil_div(ceil_div(n, bn), std::int64_t{num_sms}) * bn;
  };
  for (std::int64_t bn = kLeastCols; bn <= most_cols; bn += kStep) {
    if (columns_of_a_worker(bn) < columns_of_a_worker(tile.bn)) tile.bn = bn;
  }
  std::int64_t slot_rows = tile.bm > 8 ? kFewRows : 8;
  std::int64_t slice = (slot_rows + tile.bn * weights) * tile.bk * 2;
  return {.tile = tile, .num_stages = static_cast<int>(std::min(kStageBytes / slice, kMostStages))};
}

AttentionConfig gpu_attention_config(const AttentionDesc& d) {
  bool matrix = size_bytes(d.dtype) == 2 && d.head_dim % 16 == 0 && d.head_dim <= 256;
  AttentionConfig c{
      .tile_rows = matrix ? 128 : 16, .tile_kv = matrix ? 128 : 32, .num_stages = matrix ? 2 : 0};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows) * split_heads(d).heads_per_rank);
  return c;
}

AttentionConfig gpu_rope_config(const AttentionDesc& d) {
  constexpr std::int64_t kElements = 4096;  // of a head's rows, two halves of 8 a thread
  AttentionConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.head_dim, 1, d.m)};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows));
  return c;
}

}  // namespace

Program step_program(const GemmDesc& d, Target target) {
  GemmConfig c = config_for(d, target);
  if (reads_weights(d.m, d.a_dtype, d.b_dtype, target)) {
    GpuLoop loop = streaming_loop(d.m, d.n, kGpuSms, d.swiglu);
    c.tile = loop.tile;
    c.num_stages = loop.num_stages;
    c.num_compute_sms = gpu_workers(ceil_div(d.n, loop.tile.bn));
  }
  return gemm(d, c);
}

Program step_program(const GemmArDesc& d, Target target) {
  if (target == Target::kCpu) return gemm_ar(d, default_config(d));
  GemmArConfig c =
      default_config(d, d.m <= kFewRows ? ReduceShots::kOne : ReduceShots::kTwo, target);
  if (reads_weights(d.m, d.a_dtype, d.b_dtype, target)) {
    constexpr int kReduceSms = 16;
    GpuLoop loop = streaming_loop(d.m, d.n, kGpuSms - kReduceSms, false);
    std::int64_t tiles = ceil_div(d.n, loop.tile.bn);
    c.tile = loop.tile;
    c.num_stages = loop.num_stages;
    c.num_compute_sms = gpu_workers(tiles, kGpuSms - kReduceSms);
    c.num_reduce_sms = gpu_workers(tiles, kReduceSms);
    c.channels = tiles;
  }
  return gemm_ar(d, c);
}

Program step_program(const GemmRsDesc& d, Target target) {
  return gemm_rs(d, config_for(d, target));
}

Program step_program(const AgGemmDesc& d, Target target) {
  return ag_gemm(d, config_for(d, target));
}

Program step_program(const NormDesc& d, Target target) {
  return rms_norm(d, config_for(d, target));
}

Program step_program(const CollectiveDesc& d, Target target) {
  return all_gather(d, config_for(d, target));
}

Program add_row_program(const NormDesc& d, Target target) {
  return add_row(d, config_for(d, target));
}

Program rope_program(const AttentionDesc& d, Target target) {
  return rope(d, target == Target::kCuda ? gpu_rope_config(d) : default_config(d));
}

Program attention_program(const AttentionDesc& d, Target target) {
  return attention(d, target == Target::kCuda ? gpu_attention_config(d) : default_config(d));
}

Program decode_attention_program(const AttentionDesc& d, Target target) {
  return decode_attention(d, default_decode_config(d, target));
}

Program embedding_program(const VocabDesc& d, Target target) {
  return embedding(d, target == Target::kCuda ? embedding_gpu_config(d) : default_config(d));
}

Program lm_head_program(const VocabDesc& d, Target target) {
  if (target == Target::kCpu) return lm_head(d, default_config(d));
  VocabConfig c = lm_head_gpu_config(d);
  if (reads_weights(d.m, d.dtype, d.weight_dtype, target)) {
    c.num_copy_sms = kFewCopySms;
    GpuLoop loop = streaming_loop(d.m, vocab_per_rank(d), kGpuSms - c.num_copy_sms, false);
    c.tile_rows = loop.tile.bm;
    c.tile_vocab = loop.tile.bn;
    c.tile_k = loop.tile.bk;
    c.num_stages = loop.num_stages;
    c.num_workers =
        gpu_workers(ceil_div(vocab_per_rank(d), loop.tile.bn), kGpuSms - c.num_copy_sms);
  }
  return lm_head(d, c);
}

}  // namespace stretto
