// A decoder-only transformer on one rank of a world, from a Hugging Face checkpoint: weights cut to
// this rank's share, a KV cache, and forward passes made of overlapped operators. Families (Llama,
// Mistral, Qwen2, Qwen3 dense) differ in data only (checkpoint/config.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "stretto/model/transformer/forward_step.h"

namespace stretto {

struct TransformerOptions {
  DType dtype = DType::kF32;    // of activations and cache
  std::int64_t max_tokens = 0;  // cache capacity; 0: the model's positions
};

class Transformer {
 public:
  // Collective. `checkpoint` is read here only; `config` must outlive the transformer.
  Transformer(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
              const TransformerOptions& options);

  // Forgets the cache.
  void reset() { past_ = 0; }
  std::int64_t past() const { return past_; }
  std::int64_t max_tokens() const { return state_->max_tokens; }
  std::int64_t vocab() const { return state_->config->vocab_size; }
  const ModelWeights& weights() const { return state_->weights; }

  // Appends the tokens to the cache and returns the logits [vocab] after the last one, the same
  // bits on every rank, valid until the next call. Collective. UserError when they do not fit.
  std::span<const float> forward(std::span<const int> tokens);
  // Also hands over the logits after every token, in order: visit(position, logits).
  using Visit = std::function<void(std::int64_t, std::span<const float>)>;
  void forward_each(std::span<const int> tokens, const Visit& visit);

 private:
  ForwardStep& step_for(std::int64_t count);
  ForwardStep& append(std::span<const int> chunk);
  void check_tokens(std::span<const int> tokens) const;

  Rank& rank_;
  std::unique_ptr<ModelState> state_;
  std::map<std::int64_t, std::unique_ptr<ForwardStep>> steps_;  // by bound
  std::int64_t past_ = 0;
};

}  // namespace stretto
