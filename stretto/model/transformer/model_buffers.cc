#include "stretto/model/transformer/model_buffers.h"

#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/ops/attention/paged_write.h"

namespace stretto {
namespace {

using step::BufferKind;

step::Buffer buffer_of(std::string name, DType dtype, std::int64_t rows, std::int64_t cols,
                       BufferKind kind = BufferKind::kConstant) {
  return {.name = std::move(name),
          .dtype = dtype,
          .kind = kind,
          .shape = {step::Size::of(rows), step::Size::of(cols)}};
}

void add_layer_buffers(const ModelShape& s, std::int64_t layer, std::vector<step::Buffer>& out) {
  const ModelConfig& c = *s.config;
  HeadSplit split = split_heads(attention_desc(c, s.world_size));
  std::int64_t q_cols = split.heads_per_rank * c.head_dim;
  std::int64_t qkv_rows = q_cols + 2 * split.kv_heads_per_rank * c.head_dim;
  bool moe = c.layers[static_cast<std::size_t>(layer)].moe;
  std::int64_t hidden = c.hidden_size, experts = 1, ffn = ffn_per_rank(c, s.world_size);
  if (moe) {
    ExpertSplit split = expert_split(c, s.expert_ranks(), s.expert_groups);
    experts = split.share();
    ffn = expert_ffn_per_rank(c, split);
  }
  auto weight = [&](const char* part, std::int64_t rows, std::int64_t cols) {
    out.push_back(buffer_of(layer_buffer(layer, part), s.weight_dtype, rows, cols));
  };
  // Of a product, in `parts` with blocks of their own.
  auto product = [&](const char* part, std::int64_t parts, std::int64_t rows, std::int64_t cols) {
    if (!c.has_fp8_products()) return weight(part, parts * rows, cols);
    const std::string name = layer_buffer(layer, part);
    out.push_back(buffer_of(name, DType::kF8E4M3, parts * rows, cols));
    out.push_back(buffer_of(scales_buffer(name), DType::kF32, parts * ceil_div(rows, kWeightBlock),
                            ceil_div(cols, kWeightBlock)));
  };
  auto product_bias = [&](const char* part, std::int64_t cols) {
    out.push_back(
        buffer_of(layer_buffer(layer, part), product_bias_dtype(c, s.weight_dtype), 1, cols));
  };
  weight("input_norm", 1, hidden);
  weight("post_norm", 1, hidden);
  product("qkv", 1, qkv_rows, hidden);
  if (c.qkv_bias) product_bias("qkv_bias", qkv_rows);
  if (c.traits->qk_norm) {
    weight("q_norm", 1, c.head_dim);
    weight("k_norm", 1, c.head_dim);
  }
  product("out", 1, hidden, q_cols);
  if (s.has_whole_attention()) {
    weight("whole_qkv", s.world_size * qkv_rows, hidden);
    if (c.qkv_bias) weight("whole_qkv_bias", 1, s.world_size * qkv_rows);
    weight("whole_out", hidden, s.world_size * q_cols);
  }
  product("gate", experts, ffn, hidden);
  product("up", experts, ffn, hidden);
  product("down", experts, hidden, ffn);
  if (moe) weight("router", c.moe->num_experts, hidden);
  if (moe && c.moe->choice_bias) {
    out.push_back(
        buffer_of(layer_buffer(layer, "router_bias"), DType::kF32, 1, c.moe->num_experts));
  }
  if (c.out_bias) weight("out_bias", 1, hidden);
  if (c.mlp_bias && !moe) {
    product_bias("gate_bias", ffn);
    product_bias("up_bias", ffn);
    weight("down_bias", 1, hidden);
  }
  const std::int64_t rows = s.paged.num_pages * page_rows(s);
  const DType dtype = s.paged.fp8 ? DType::kF8E4M3 : s.dtype;
  for (const char* cache : {"k_cache", "v_cache"}) {
    out.push_back(
        buffer_of(layer_buffer(layer, cache), dtype, rows, c.head_dim, BufferKind::kState));
  }
  for (const char* scales : {"k_scales", "v_scales"}) {
    if (s.paged.fp8)
      out.push_back(
          buffer_of(layer_buffer(layer, scales), DType::kF32, rows, 1, BufferKind::kState));
  }
}

}  // namespace

std::int64_t page_rows(const ModelShape& s) {
  AttentionDesc d = attention_desc(*s.config, s.world_size);
  return s.paged.page * cached_heads({.num_heads = d.num_heads,
                                      .num_kv_heads = d.num_kv_heads,
                                      .head_dim = d.head_dim,
                                      .world_size = d.world_size});
}

std::vector<step::Buffer> model_buffers(const ModelShape& s) {
  const ModelConfig& c = *s.config;
  std::int64_t vocab = ceil_div(c.vocab_size, std::int64_t{s.world_size});
  std::vector<step::Buffer> out;
  out.push_back(buffer_of("embedding", s.weight_dtype, vocab, c.hidden_size));
  if (!c.tie_word_embeddings)
    out.push_back(buffer_of("lm_head", s.weight_dtype, vocab, c.hidden_size));
  out.push_back(buffer_of("final_norm", s.weight_dtype, 1, c.hidden_size));
  for (std::int64_t i = 0; i < c.num_layers(); ++i) add_layer_buffers(s, i, out);
  if (s.chosen > 0) {
    out.push_back(buffer_of(kChosenBuffer, DType::kI32, s.chosen, 1, BufferKind::kState));
  }
  return out;
}

}  // namespace stretto
