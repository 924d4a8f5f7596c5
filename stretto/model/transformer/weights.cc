#include "stretto/model/transformer/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

// Where one rank's heads lie in the rows of q_proj, k_proj and v_proj.
struct HeadRange {
  std::int64_t q_first, q_count, kv_first, kv_count;
};

HeadRange heads_of(const AttentionDesc& d, int rank) {
  HeadSplit split = split_heads(d);
  HeadRange h{split.first_head(rank), split.num_heads_of(rank), split.first_kv_head(rank), 0};
  if (h.q_count > 0) {
    std::int64_t last = (h.q_first + h.q_count - 1) / (d.num_heads / d.num_kv_heads);
    h.kv_count = last - h.kv_first + 1;
  }
  return h;
}

Matrix as_row(const Matrix& column) {
  Matrix row(column.dtype(), 1, column.rows());
  std::memcpy(row.data(), column.data(),
              static_cast<std::size_t>(column.rows()) * size_bytes(column.dtype()));
  return row;
}

void keep(ProductMatrix matrix, Matrix& weight, Matrix& scales) {
  ProductMatrix::Made made = matrix.finish();
  weight = std::move(made.weight);
  scales = std::move(made.scales);
}

// Of e4m3 weights, whole blocks.
std::int64_t share_of_ranks(const ModelConfig& c, std::int64_t size, std::int64_t ranks) {
  std::int64_t share = ceil_div(size, ranks);
  if (!c.has_fp8_products() || ranks == 1) return share;
  return ceil_div(share, kWeightBlock) * kWeightBlock;
}

}  // namespace

DType weight_dtype(const Checkpoint& checkpoint, DType activations) {
  if (activations != DType::kF32) return activations;
  DType first = checkpoint.tensor("model.embed_tokens.weight").dtype;
  for (const std::string& name : checkpoint.names()) {
    if (is_product_weight(name) && checkpoint.contains(scales_name(name))) continue;
    if (!is_choice_bias(name) && !is_scales(name) && checkpoint.tensor(name).dtype != first)
      return DType::kF32;
  }
  return first;
}

DType product_bias_dtype(const ModelConfig& config, DType weights) {
  return config.has_fp8_products() ? DType::kBF16 : weights;
}

ShardSpec shard_spec(const ModelShape& s, int rank) {
  return {.rank = rank % s.world_size,
          .world_size = s.world_size,
          .dtype = s.dtype,
          .whole_attention = s.has_whole_attention(),
          .expert_rank = rank % s.expert_ranks(),
          .expert_ranks = s.expert_ranks(),
          .expert_groups = s.expert_groups};
}

WeightLoader::WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config,
                           const ShardSpec& spec)
    : checkpoint_(checkpoint),
      c_(config),
      spec_(spec),
      dtype_(weight_dtype(checkpoint, spec.dtype)) {}

ModelWeights WeightLoader::outer() const {
  ModelWeights w;
  w.embedding = vocabulary("model.embed_tokens.weight");
  if (!c_.tie_word_embeddings) w.lm_head = vocabulary("lm_head.weight");
  w.final_norm = whole("model.norm.weight", c_.hidden_size);
  return w;
}

Matrix WeightLoader::whole(const std::string& name, std::int64_t cols) const {
  const TensorView& view = checkpoint_.tensor(name);
  Matrix m(dtype_, view.num_elements() / cols, cols);
  m.copy_from(view, {.count = m.rows()});
  return m;
}

Matrix WeightLoader::vocabulary(const std::string& name) const {
  std::int64_t share = ceil_div(c_.vocab_size, static_cast<std::int64_t>(spec_.world_size));
  return row_block(name, share, c_.vocab_size, c_.hidden_size);
}

// Rows [rank * share, (rank + 1) * share) of `rows`, zero past the end.
Matrix WeightLoader::row_block(const std::string& name, std::int64_t share, std::int64_t rows,
                               std::int64_t cols) const {
  const TensorView& view = checkpoint_.tensor(name);
  Matrix m(dtype_, share, cols);
  std::int64_t first = std::min(spec_.rank * share, rows);
  m.copy_from(view, {.first = first, .count = std::min(share, rows - first)});
  return m;
}

Matrix WeightLoader::row_bias(const std::string& name, std::int64_t share,
                              std::int64_t rows) const {
  Matrix column(product_bias_dtype(c_, dtype_), share, 1);
  std::int64_t first = std::min(spec_.rank * share, rows);
  column.copy_from(checkpoint_.tensor(name),
                   {.first = first, .count = std::min(share, rows - first)});
  return as_row(column);
}

std::int64_t WeightLoader::qkv_rows(const Ranks& ranks) const {
  HeadSplit split = split_heads(attention_desc(c_, spec_.world_size));
  return ranks.count * (split.heads_per_rank + 2 * split.kv_heads_per_rank) * c_.head_dim;
}

// Of each rank q, k and v under one another.
void WeightLoader::qkv(const std::string& attention, const char* suffix, const Ranks& ranks,
                       const Put& put) const {
  AttentionDesc d = attention_desc(c_, spec_.world_size);
  HeadSplit split = split_heads(d);
  std::int64_t dim = d.head_dim, q = split.heads_per_rank, kv = split.kv_heads_per_rank;
  for (int i = 0; i < ranks.count; ++i) {
    HeadRange h = heads_of(d, ranks.first + i);
    std::int64_t to = i * (q + 2 * kv) * dim;
    put(attention + "q_proj." + suffix,
        {.first = h.q_first * dim, .count = h.q_count * dim, .to = to});
    Matrix::Cut cut{.first = h.kv_first * dim, .count = h.kv_count * dim, .to = to + q * dim};
    put(attention + "k_proj." + suffix, cut);
    cut.to += kv * dim;
    put(attention + "v_proj." + suffix, cut);
  }
}

ProductMatrix WeightLoader::qkv_weight(const std::string& attention, const Ranks& ranks) const {
  ProductMatrix m(checkpoint_, c_, dtype_, {.rows = qkv_rows(ranks), .cols = c_.hidden_size});
  qkv(attention, "weight", ranks,
      [&](const std::string& name, const Matrix::Cut& cut) { m.add(0, name, cut); });
  return m;
}

Matrix WeightLoader::qkv_bias(const std::string& attention, const Ranks& ranks) const {
  Matrix column(product_bias_dtype(c_, dtype_), qkv_rows(ranks), 1);
  qkv(attention, "bias", ranks, [&](const std::string& name, const Matrix::Cut& cut) {
    column.copy_from(checkpoint_.tensor(name), cut);
  });
  return as_row(column);
}

// The columns of each rank's heads side by side.
ProductMatrix WeightLoader::out(const std::string& attention, const Ranks& ranks) const {
  AttentionDesc d = attention_desc(c_, spec_.world_size);
  std::int64_t share = split_heads(d).heads_per_rank * d.head_dim;
  ProductMatrix m(checkpoint_, c_, dtype_, {.rows = c_.hidden_size, .cols = ranks.count * share});
  for (int i = 0; i < ranks.count; ++i) {
    HeadRange h = heads_of(d, ranks.first + i);
    m.add(0, attention + "o_proj.weight",
          {.count = c_.hidden_size,
           .first_col = h.q_first * d.head_dim,
           .num_cols = h.q_count * d.head_dim,
           .to_col = i * share});
  }
  return m;
}

void WeightLoader::attention(LayerWeights& w, const std::string& attention) const {
  Ranks own{.first = spec_.rank}, all{.count = spec_.world_size};
  keep(qkv_weight(attention, own), w.qkv, w.qkv_scales);
  if (c_.qkv_bias) w.qkv_bias = qkv_bias(attention, own);
  keep(out(attention, own), w.out, w.out_scales);
  if (c_.out_bias) w.out_bias = whole(attention + "o_proj.bias", c_.hidden_size);
  if (c_.traits->qk_norm) {
    w.q_norm = whole(attention + "q_norm.weight", c_.head_dim);
    w.k_norm = whole(attention + "k_norm.weight", c_.head_dim);
  }
  if (!spec_.whole_attention) return;
  w.whole_qkv = qkv_weight(attention, all).finish().weight;
  if (c_.qkv_bias) w.whole_qkv_bias = qkv_bias(attention, all);
  w.whole_out = out(attention, all).finish().weight;
}

LayerWeights WeightLoader::layer(std::int64_t i) const {
  std::string prefix = fmt::format("model.layers.{}.", i);
  LayerWeights w;
  w.input_norm = whole(prefix + "input_layernorm.weight", c_.hidden_size);
  w.post_norm = whole(prefix + "post_attention_layernorm.weight", c_.hidden_size);
  attention(w, prefix + "self_attn.");
  if (c_.layers[static_cast<std::size_t>(i)].moe) {
    experts(w, prefix);
  } else {
    dense_mlp(w, prefix + "mlp.");
  }
  return w;
}

void WeightLoader::dense_mlp(LayerWeights& w, const std::string& mlp) const {
  std::int64_t share = ffn_per_rank(c_, spec_.world_size), size = c_.intermediate_size;
  std::int64_t first = std::min(spec_.rank * share, size), count = std::min(share, size - first);
  auto rows = [&](const char* name, Matrix& weight, Matrix& scales) {
    ProductMatrix m(checkpoint_, c_, dtype_, {.rows = share, .cols = c_.hidden_size});
    m.add(0, mlp + name, {.first = first, .count = count});
    keep(std::move(m), weight, scales);
  };
  rows("gate_proj.weight", w.gate, w.gate_scales);
  rows("up_proj.weight", w.up, w.up_scales);
  ProductMatrix down(checkpoint_, c_, dtype_, {.rows = c_.hidden_size, .cols = share});
  down.add(0, mlp + "down_proj.weight",
           {.count = c_.hidden_size, .first_col = first, .num_cols = count});
  keep(std::move(down), w.down, w.down_scales);
  if (c_.mlp_bias) {
    w.gate_bias = row_bias(mlp + "gate_proj.bias", share, size);
    w.up_bias = row_bias(mlp + "up_proj.bias", share, size);
    w.down_bias = whole(mlp + "down_proj.bias", c_.hidden_size);
  }
}

// Of every expert of the rank's group this rank's part.
void WeightLoader::experts(LayerWeights& w, const std::string& layer) const {
  MoeNames names = moe_names(c_.traits->family);
  std::string block = layer + names.block + ".";
  ExpertSplit split = expert_split(c_, spec_.expert_ranks, spec_.expert_groups);
  std::int64_t share = expert_ffn_per_rank(c_, split);
  std::int64_t part = spec_.expert_rank % split.ranks_per_group();
  std::int64_t size = c_.moe->intermediate_size, hidden = c_.hidden_size;
  std::int64_t first = std::min(part * share, size), count = std::min(share, size - first);
  w.router = whole(block + "gate.weight", hidden);
  if (c_.moe->choice_bias) {
    w.router_bias = Matrix(DType::kF32, 1, c_.moe->num_experts);
    Matrix column(DType::kF32, c_.moe->num_experts, 1);
    column.copy_from(checkpoint_.tensor(block + "gate.e_score_correction_bias"),
                     {.count = column.rows()});
    w.router_bias = as_row(column);
  }
  std::int64_t first_expert = split.first(spec_.expert_rank);
  auto of_experts = [&](const char* name, const ProductMatrix::Size& of_expert,
                        const Matrix::Cut& cut) {
    ProductMatrix m(checkpoint_, c_, dtype_, of_expert);
    for (std::int64_t e = first_expert; e < split.end(spec_.expert_rank); ++e) {
      m.add(e - first_expert, fmt::format("{}experts.{}.{}.weight", block, e, name), cut);
    }
    return m;
  };
  const ProductMatrix::Size up{.parts = split.share(), .rows = share, .cols = hidden};
  const ProductMatrix::Size down{.parts = split.share(), .rows = hidden, .cols = share};
  const Matrix::Cut rows{.first = first, .count = count};
  keep(of_experts(names.gate, up, rows), w.gate, w.gate_scales);
  keep(of_experts(names.up, up, rows), w.up, w.up_scales);
  keep(of_experts(names.down, down, {.count = hidden, .first_col = first, .num_cols = count}),
       w.down, w.down_scales);
}

std::string layer_buffer(std::int64_t layer, const char* part) {
  return fmt::format("layers.{}.{}", layer, part);
}

std::string scales_buffer(const std::string& weight_buffer) { return weight_buffer + "_scales"; }

void for_each_weight(const ModelWeights& w, const VisitWeight& visit) {
  visit("embedding", w.embedding);
  if (!w.lm_head.empty()) visit("lm_head", w.lm_head);
  visit("final_norm", w.final_norm);
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    for_each_weight(w.layers[i], static_cast<std::int64_t>(i), visit);
  }
}

void for_each_weight(const LayerWeights& w, std::int64_t layer_idx, const VisitWeight& visit) {
  const std::pair<const char*, const Matrix*> parts[] = {{"input_norm", &w.input_norm},
                                                         {"post_norm", &w.post_norm},
                                                         {"qkv", &w.qkv},
                                                         {"qkv_scales", &w.qkv_scales},
                                                         {"qkv_bias", &w.qkv_bias},
                                                         {"q_norm", &w.q_norm},
                                                         {"k_norm", &w.k_norm},
                                                         {"out", &w.out},
                                                         {"out_scales", &w.out_scales},
                                                         {"out_bias", &w.out_bias},
                                                         {"whole_qkv", &w.whole_qkv},
                                                         {"whole_qkv_bias", &w.whole_qkv_bias},
                                                         {"whole_out", &w.whole_out},
                                                         {"gate", &w.gate},
                                                         {"gate_scales", &w.gate_scales},
                                                         {"gate_bias", &w.gate_bias},
                                                         {"up", &w.up},
                                                         {"up_scales", &w.up_scales},
                                                         {"up_bias", &w.up_bias},
                                                         {"down", &w.down},
                                                         {"down_scales", &w.down_scales},
                                                         {"down_bias", &w.down_bias},
                                                         {"router", &w.router},
                                                         {"router_bias", &w.router_bias}};
  for (auto [name, matrix] : parts) {
    if (!matrix->empty()) visit(layer_buffer(layer_idx, name), *matrix);
  }
}

std::size_t ModelWeights::bytes() const {
  std::size_t total = 0;
  for_each_weight(*this, [&](const std::string&, const Matrix& m) {
    total += static_cast<std::size_t>(m.rows() * m.cols()) * size_bytes(m.dtype());
  });
  return total;
}

AttentionDesc attention_desc(const ModelConfig& c, int world_size) {
  return {.num_heads = static_cast<int>(c.num_heads),
          .num_kv_heads = static_cast<int>(c.num_kv_heads),
          .head_dim = c.head_dim,
          .head_norm = c.traits->qk_norm,
          .norm_eps = c.rms_norm_eps,
          .world_size = world_size};
}

std::int64_t ffn_per_rank(const ModelConfig& c, int world_size) {
  return share_of_ranks(c, c.intermediate_size, world_size);
}

ExpertSplit expert_split(const ModelConfig& c, int world_size, int groups) {
  return {.num_experts = c.moe->num_experts, .world_size = world_size, .groups = groups};
}

std::int64_t expert_ffn_per_rank(const ModelConfig& c, const ExpertSplit& split) {
  return share_of_ranks(c, c.moe->intermediate_size, split.ranks_per_group());
}

void tell_layer(Progress* progress, std::int64_t layer_idx, std::int64_t num_layers) {
  if (progress == nullptr) return;
  progress->begin(fmt::format("loading weights, layer {} of {}", layer_idx + 1, num_layers));
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ShardSpec& spec, Progress* progress) {
  checkpoint.check_unchanged();
  WeightLoader loader(checkpoint, config, spec);
  ModelWeights weights = loader.outer();
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    tell_layer(progress, i, config.num_layers());
    weights.layers.push_back(loader.layer(i));
  }
  checkpoint.check_unchanged();
  return weights;
}

namespace {

bool is_whole(std::int64_t size) { return size % kWeightBlock == 0; }

// The row of which tensor begins within a block on some rank, or where its share does; empty: all
// are at the beginning of blocks.
std::string cut_block(const ModelConfig& c, int world_size) {
  AttentionDesc d = attention_desc(c, world_size);
  HeadSplit split = split_heads(d);
  const std::int64_t q = split.heads_per_rank * d.head_dim,
                     kv = split.kv_heads_per_rank * d.head_dim;
  if (!is_whole(q)) {
    return fmt::format("a rank has {} rows of q_proj.weight and columns of o_proj.weight", q);
  }
  if (!is_whole(kv)) return fmt::format("a rank has {} rows of k_proj.weight", kv);
  for (int rank = 0; rank < world_size; ++rank) {
    std::int64_t first = split.first_kv_head(rank) * d.head_dim;
    if (is_whole(first) || split.num_heads_of(rank) == 0) continue;
    return fmt::format("rank {} begins with row {} of k_proj.weight", rank, first);
  }
  return "";
}

}  // namespace

void check_blocks(const ModelConfig& c, int world_size) {
  if (c.product_weights != ProductWeights::kFp8Stored) return;
  std::string cut = cut_block(c, world_size);
  if (cut.empty()) return;
  std::vector<int> possible;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    if (cut_block(c, ranks).empty()) possible.push_back(ranks);
  }
  throw UserError(
      fmt::format("{}: {} tensor-parallel ranks: {}, no whole blocks of {} that share a scale; {}",
                  c.where, world_size, cut, kWeightBlock,
                  possible.empty() ? "no number of ranks has"
                                   : fmt::format("possible are {}", fmt::join(possible, ", "))));
}

}  // namespace stretto
