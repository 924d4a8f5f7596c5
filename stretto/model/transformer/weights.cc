#include "stretto/model/transformer/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;

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

}  // namespace

void Matrix::Free::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t{kAlignment});
}

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t cols)
    : dtype_(dtype), rows_(rows), cols_(cols) {
  std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_bytes(dtype);
  data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
  std::memset(data_.get(), 0, bytes);
}

std::byte* Matrix::row(std::int64_t r) const {
  return data_.get() + static_cast<std::size_t>(r * cols_) * size_bytes(dtype_);
}

void Matrix::copy_from(const TensorView& from, const Cut& cut) {
  // A vector is one row, or one column when this matrix is one.
  std::int64_t from_cols = from.shape.size() >= 2 ? from.shape[1] : cols_ == 1 ? 1 : from.shape[0];
  std::int64_t count_cols = cut.num_cols < 0 ? from_cols : cut.num_cols;
  STRETTO_CHECK(cut.to_col + count_cols <= cols_ && cut.to + cut.count <= rows_,
                "a weight does not fit its shard");
  std::size_t from_size = size_bytes(from.dtype), to_size = size_bytes(dtype_);
  for (std::int64_t r = 0; r < cut.count; ++r) {
    const std::byte* source =
        from.data +
        static_cast<std::size_t>((cut.first + r) * from_cols + cut.first_col) * from_size;
    std::byte* target = row(cut.to + r) + static_cast<std::size_t>(cut.to_col) * to_size;
    if (from.dtype == dtype_) {
      std::memcpy(target, source, static_cast<std::size_t>(count_cols) * to_size);
      continue;
    }
    for (std::int64_t i = 0; i < count_cols; ++i) {
      auto at = static_cast<std::size_t>(i);
      store_element(dtype_, target + at * to_size,
                    load_element(from.dtype, source + at * from_size));
    }
  }
}

DType weight_dtype(const Checkpoint& checkpoint, DType activations) {
  if (activations != DType::kF32) return activations;
  DType first = checkpoint.tensor("model.embed_tokens.weight").dtype;
  for (const std::string& name : checkpoint.names()) {
    if (!is_choice_bias(name) && checkpoint.tensor(name).dtype != first) return DType::kF32;
  }
  return first;
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

Matrix WeightLoader::col_block(const std::string& name, std::int64_t first, std::int64_t count,
                               std::int64_t share) const {
  const TensorView& view = checkpoint_.tensor(name);
  Matrix m(dtype_, view.shape[0], share);
  m.copy_from(view, {.count = m.rows(), .first_col = first, .num_cols = count});
  return m;
}

// Of each rank q, k and v under one another; `cols` is hidden_size for weights, 1 for biases.
Matrix WeightLoader::qkv(const std::string& attention, const char* suffix, std::int64_t cols,
                         const Ranks& ranks) const {
  AttentionDesc d = attention_desc(c_, spec_.world_size);
  HeadSplit split = split_heads(d);
  std::int64_t dim = d.head_dim, q = split.heads_per_rank, kv = split.kv_heads_per_rank;
  auto view = [&](const char* part) -> const TensorView& {
    return checkpoint_.tensor(attention + part + suffix);
  };
  Matrix m(dtype_, ranks.count * (q + 2 * kv) * dim, cols);
  for (int i = 0; i < ranks.count; ++i) {
    HeadRange h = heads_of(d, ranks.first + i);
    std::int64_t to = i * (q + 2 * kv) * dim;
    m.copy_from(view("q_proj."), {.first = h.q_first * dim, .count = h.q_count * dim, .to = to});
    Matrix::Cut cut{.first = h.kv_first * dim, .count = h.kv_count * dim, .to = to + q * dim};
    m.copy_from(view("k_proj."), cut);
    cut.to += kv * dim;
    m.copy_from(view("v_proj."), cut);
  }
  return m;
}

// The columns of each rank's heads side by side.
Matrix WeightLoader::out(const std::string& attention, const Ranks& ranks) const {
  AttentionDesc d = attention_desc(c_, spec_.world_size);
  std::int64_t share = split_heads(d).heads_per_rank * d.head_dim;
  const TensorView& view = checkpoint_.tensor(attention + "o_proj.weight");
  Matrix m(dtype_, view.shape[0], ranks.count * share);
  for (int i = 0; i < ranks.count; ++i) {
    HeadRange h = heads_of(d, ranks.first + i);
    m.copy_from(view, {.count = m.rows(),
                       .first_col = h.q_first * d.head_dim,
                       .num_cols = h.q_count * d.head_dim,
                       .to_col = i * share});
  }
  return m;
}

void WeightLoader::attention(LayerWeights& w, const std::string& attention) const {
  Ranks own{.first = spec_.rank}, all{.count = spec_.world_size};
  w.qkv = qkv(attention, "weight", c_.hidden_size, own);
  if (c_.qkv_bias) w.qkv_bias = as_row(qkv(attention, "bias", 1, own));
  w.out = out(attention, own);
  if (c_.out_bias) w.out_bias = whole(attention + "o_proj.bias", c_.hidden_size);
  if (c_.traits->qk_norm) {
    w.q_norm = whole(attention + "q_norm.weight", c_.head_dim);
    w.k_norm = whole(attention + "k_norm.weight", c_.head_dim);
  }
  if (!spec_.whole_attention) return;
  w.whole_qkv = qkv(attention, "weight", c_.hidden_size, all);
  if (c_.qkv_bias) w.whole_qkv_bias = as_row(qkv(attention, "bias", 1, all));
  w.whole_out = out(attention, all);
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
  w.gate = row_block(mlp + "gate_proj.weight", share, size, c_.hidden_size);
  w.up = row_block(mlp + "up_proj.weight", share, size, c_.hidden_size);
  std::int64_t first = std::min(spec_.rank * share, size);
  w.down = col_block(mlp + "down_proj.weight", first, std::min(share, size - first), share);
  if (c_.mlp_bias) {
    w.gate_bias = as_row(row_block(mlp + "gate_proj.bias", share, size, 1));
    w.up_bias = as_row(row_block(mlp + "up_proj.bias", share, size, 1));
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
  w.gate = Matrix(dtype_, split.share() * share, hidden);
  w.up = Matrix(dtype_, split.share() * share, hidden);
  w.down = Matrix(dtype_, split.share() * hidden, share);
  std::int64_t first_expert = split.first(spec_.expert_rank);
  for (std::int64_t e = first_expert; e < split.end(spec_.expert_rank); ++e) {
    std::int64_t own = e - first_expert;
    auto view = [&](const char* name) -> const TensorView& {
      return checkpoint_.tensor(fmt::format("{}experts.{}.{}.weight", block, e, name));
    };
    Matrix::Cut rows{.first = first, .count = count, .to = own * share};
    w.gate.copy_from(view(names.gate), rows);
    w.up.copy_from(view(names.up), rows);
    w.down.copy_from(view(names.down),
                     {.count = hidden, .to = own * hidden, .first_col = first, .num_cols = count});
  }
}

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
                                                         {"qkv_bias", &w.qkv_bias},
                                                         {"q_norm", &w.q_norm},
                                                         {"k_norm", &w.k_norm},
                                                         {"out", &w.out},
                                                         {"out_bias", &w.out_bias},
                                                         {"whole_qkv", &w.whole_qkv},
                                                         {"whole_qkv_bias", &w.whole_qkv_bias},
                                                         {"whole_out", &w.whole_out},
                                                         {"gate", &w.gate},
                                                         {"gate_bias", &w.gate_bias},
                                                         {"up", &w.up},
                                                         {"up_bias", &w.up_bias},
                                                         {"down", &w.down},
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
  return ceil_div(c.intermediate_size, static_cast<std::int64_t>(world_size));
}

ExpertSplit expert_split(const ModelConfig& c, int world_size, int groups) {
  return {.num_experts = c.moe->num_experts, .world_size = world_size, .groups = groups};
}

std::int64_t expert_ffn_per_rank(const ModelConfig& c, const ExpertSplit& split) {
  return ceil_div(c.moe->intermediate_size, std::int64_t{split.ranks_per_group()});
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ShardSpec& spec) {
  WeightLoader loader(checkpoint, config, spec);
  ModelWeights weights = loader.outer();
  for (std::int64_t i = 0; i < config.num_layers(); ++i) weights.layers.push_back(loader.layer(i));
  return weights;
}

}  // namespace stretto
