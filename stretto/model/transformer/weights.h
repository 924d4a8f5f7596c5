// One rank's share of a model's weights, cut from the checkpoint and zero-padded to the same shape
// on every rank, so that any number of ranks works: padded heads and columns contribute nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/model/checkpoint/config.h"
#include "stretto/model/transformer/step_plan.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/moe/expert_split.h"

namespace stretto {

// Row-major, 64-byte aligned, owned.
class Matrix {
 public:
  Matrix() = default;
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols);  // zeros

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  bool empty() const { return rows_ * cols_ == 0; }
  std::byte* data() const { return data_.get(); }
  std::byte* row(std::int64_t r) const;

  // Copies `count` rows of `from` ([*, cols]) starting at `first`, to rows starting at `to`,
  // converting to this dtype; columns [first_col, first_col + num_cols) land at column to_col.
  struct Cut {
    std::int64_t first = 0, count = 0, to = 0;
    std::int64_t first_col = 0, num_cols = -1, to_col = 0;  // -1: all
  };
  void copy_from(const TensorView& from, const Cut& cut);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  DType dtype_ = DType::kF32;
  std::int64_t rows_ = 0, cols_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

struct LayerWeights {
  Matrix input_norm, post_norm;  // [1, hidden]
  Matrix qkv;                    // [(Hq + 2 Hkv) * head_dim, hidden]
  Matrix qkv_bias;               // [1, rows of qkv], or empty
  Matrix q_norm, k_norm;         // [1, head_dim], or empty
  Matrix out;                    // [hidden, Hq * head_dim]
  Matrix out_bias;               // [1, hidden], or empty; added once, not by every rank
  // Where prompts take sequence-parallel attention, qkv and its bias of all ranks under one
  // another, and out of all ranks side by side.
  Matrix whole_qkv;           // [P * rows of qkv, hidden], or empty
  Matrix whole_qkv_bias;      // [1, P * rows of qkv], or empty
  Matrix whole_out;           // [hidden, P * columns of out], or empty
  Matrix gate, up;            // [I', hidden]
  Matrix gate_bias, up_bias;  // [1, I'], or empty
  Matrix down;                // [hidden, I']
  Matrix down_bias;           // as out_bias
  // Of a mixture of experts: gate and up are [E' * I', hidden], down is [E' * hidden, I'], one of
  // the rank's experts under the other.
  Matrix router;       // [E, hidden], or empty
  Matrix router_bias;  // [1, E] f32, or empty
};

struct ModelWeights {
  Matrix embedding;  // [V', hidden]
  Matrix lm_head;    // [V', hidden]; empty when tied to the embedding
  Matrix final_norm;
  std::vector<LayerWeights> layers;

  const Matrix& head() const { return lm_head.empty() ? embedding : lm_head; }
  std::size_t bytes() const;
};

struct ShardSpec {
  int rank = 0, world_size = 1;
  DType dtype = DType::kF32;     // activations; 16-bit weights stay 16-bit under f32 activations
  bool whole_attention = false;  // also the shares of all ranks: LayerWeights::whole_qkv
  // Of the ranks that have the experts together (ops/moe/expert_split.h).
  int expert_rank = 0, expert_ranks = 1, expert_groups = 1;
};
// Of one of shape.all_ranks() ranks.
ShardSpec shard_spec(const ModelShape& shape, int rank);

AttentionDesc attention_desc(const ModelConfig& config, int world_size);
std::int64_t ffn_per_rank(const ModelConfig& config, int world_size);
ExpertSplit expert_split(const ModelConfig& config, int world_size, int groups);
std::int64_t expert_ffn_per_rank(const ModelConfig& config, const ExpertSplit& split);

// What ranks keep the weights in: the activations' dtype, or under f32 activations the checkpoint's
// own where all weights agree on one, which loses nothing.
DType weight_dtype(const Checkpoint& checkpoint, DType activations);

// Cuts one rank's share out of a checkpoint, which must outlive it, part by part.
class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, const ShardSpec& spec);

  ModelWeights outer() const;  // all but the layers
  LayerWeights layer(std::int64_t layer_idx) const;

 private:
  Matrix whole(const std::string& name, std::int64_t cols) const;
  Matrix vocabulary(const std::string& name) const;
  Matrix row_block(const std::string& name, std::int64_t share, std::int64_t rows,
                   std::int64_t cols) const;
  Matrix col_block(const std::string& name, std::int64_t first, std::int64_t count,
                   std::int64_t share) const;
  // Shares of attention's weights: of ranks [first, first + count).
  struct Ranks {
    int first = 0, count = 1;
  };
  Matrix qkv(const std::string& attention, const char* suffix, std::int64_t cols,
             const Ranks& ranks) const;
  Matrix out(const std::string& attention, const Ranks& ranks) const;
  void attention(LayerWeights& w, const std::string& attention) const;
  void dense_mlp(LayerWeights& w, const std::string& mlp) const;
  void experts(LayerWeights& w, const std::string& layer) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  ShardSpec spec_;
  DType dtype_;
};

using VisitWeight = std::function<void(const std::string& name, const Matrix& weight)>;
// Those that are not empty, under the names of step_plan.h: model_buffers().
void for_each_weight(const ModelWeights& weights, const VisitWeight& visit);
void for_each_weight(const LayerWeights& weights, std::int64_t layer_idx, const VisitWeight& visit);

// All parts of WeightLoader together.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ShardSpec& spec);

}  // namespace stretto
