// One rank's share of a model's weights, cut from the checkpoint and zero-padded to the same shape
// on every rank, so that any number of ranks works: padded heads and columns contribute nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/transformer/fp8_weights.h"
#include "stretto/model/transformer/matrix.h"
#include "stretto/model/transformer/model_shape.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/moe/expert_split.h"

namespace stretto {

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
  // With e4m3 products the scales of qkv, out, gate, up and down: f32, one for each 128 x 128;
  // an expert begins with a block of its own. Else empty.
  Matrix qkv_scales, out_scales, gate_scales, up_scales, down_scales;
  // In a mixture of experts gate and up are [E' * I', hidden], down is [E' * hidden, I'], the
  // rank's experts one under the other.
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
  // Among the ranks that have the experts together (ops/moe/expert_split.h).
  int expert_rank = 0, expert_ranks = 1, expert_groups = 1;
};
// The part that one of shape.all_ranks() ranks has.
ShardSpec shard_spec(const ModelShape& shape, int rank);

AttentionDesc attention_desc(const ModelConfig& config, int world_size);
std::int64_t ffn_per_rank(const ModelConfig& config, int world_size);
ExpertSplit expert_split(const ModelConfig& config, int world_size, int groups);
std::int64_t expert_ffn_per_rank(const ModelConfig& config, const ExpertSplit& split);

// What ranks keep the weights in, but for products of e4m3: the activations' dtype, or under f32
// activations the checkpoint's own where all weights agree on one, which loses nothing.
DType weight_dtype(const Checkpoint& checkpoint, DType activations);

// Biases that products add, which those of e4m3 take in bfloat16.
DType product_bias_dtype(const ModelConfig& config, DType weights);

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
  // Shares of attention's weights: of ranks [first, first + count).
  struct Ranks {
    int first = 0, count = 1;
  };
  using Put = std::function<void(const std::string& name, const Matrix::Cut& cut)>;
  std::int64_t qkv_rows(const Ranks& ranks) const;
  void qkv(const std::string& attention, const char* suffix, const Ranks& ranks,
           const Put& put) const;
  Matrix qkv_bias(const std::string& attention, const Ranks& ranks) const;
  ProductMatrix qkv_weight(const std::string& attention, const Ranks& ranks) const;
  ProductMatrix out(const std::string& attention, const Ranks& ranks) const;
  Matrix row_bias(const std::string& name, std::int64_t share, std::int64_t rows) const;
  void attention(LayerWeights& w, const std::string& attention) const;
  void dense_mlp(LayerWeights& w, const std::string& mlp) const;
  void experts(LayerWeights& w, const std::string& layer) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  ShardSpec spec_;
  DType dtype_;
};

// Where a part of a layer is: "layers.3.qkv".
std::string layer_buffer(std::int64_t layer, const char* part);
// The name of the scales of an e4m3 weight: "layers.3.qkv_scales".
std::string scales_buffer(const std::string& weight_buffer);

// UserError where blocks of stored e4m3 weights would be cut by so many tensor-parallel ranks.
void check_blocks(const ModelConfig& config, int world_size);

using VisitWeight = std::function<void(const std::string& name, const Matrix& weight)>;
// Those that are not empty, under the names of model_buffers.h.
void for_each_weight(const ModelWeights& weights, const VisitWeight& visit);
void for_each_weight(const LayerWeights& weights, std::int64_t layer_idx, const VisitWeight& visit);

// Who loads weights tells whom it may concern; nobody where `progress` is null.
void tell_layer(Progress* progress, std::int64_t layer_idx, std::int64_t num_layers);

// All parts of WeightLoader together. UserError where files of the checkpoint have changed.
ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ShardSpec& spec, Progress* progress = nullptr);

}  // namespace stretto
