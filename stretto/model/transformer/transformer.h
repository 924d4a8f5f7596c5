// A decoder-only transformer from a Hugging Face checkpoint: tokens in, logits out, through a KV
// cache and forward passes made of overlapped operators. On CPU ranks each rank has one; on GPUs
// one drives all ranks (model/gpu/gpu_model.h). Families (Llama, Mistral, Qwen2, Qwen3 dense)
// differ in data only (checkpoint/config.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "stretto/model/transformer/forward_step.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct TransformerOptions {
  DType dtype = DType::kF32;    // of activations and cache
  std::int64_t max_tokens = 0;  // cache capacity; 0: the model's positions
  // Whose configs the steps use. CPU ranks can run the plan of a GPU, which tests do.
  Target plan_for = Target::kCpu;
  int expert_groups = 1;  // of ranks: a mixture's experts are spread over this many
  // Groups of as many consecutive ranks, tensor-parallel each, with tokens of their own. They make
  // their steps together (step_with_others), those with experts of several groups in one exchange.
  int data_groups = 1;
  // Prompts through sequence-parallel attention (Ulysses): more memory for weights, less traffic.
  bool ulysses = false;
};

// UserError where `num_ranks` ranks are no whole number for each data group, or the experts of the
// model, if it has any, cannot be spread over so many groups.
void check_groups(const ModelConfig& config, int num_ranks, int data_groups, int expert_groups);

// What the options make of a config on `num_ranks` ranks; weight_dtype is left to the runner.
// UserError as check_groups and check_blocks (weights.h), and for e4m3 weights with ulysses.
ModelShape model_shape(const ModelConfig& config, int num_ranks, const TransformerOptions& options);

class Transformer {
 public:
  explicit Transformer(std::unique_ptr<ModelRunner> runner);
  // On a CPU rank. Collective. `checkpoint` is read here only; `config` must outlive the
  // transformer.
  Transformer(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
              const TransformerOptions& options);

  // Forgets the cache.
  void reset() { past_ = 0; }
  std::int64_t past() const { return past_; }
  std::int64_t max_tokens() const { return runner_->shape().max_tokens; }
  std::int64_t vocab() const { return runner_->shape().config->vocab_size; }
  ModelRunner& runner() { return *runner_; }

  // Appends the tokens to the cache and returns the logits [vocab] after the last one, the same
  // bits on every rank, valid until the next call. Collective on CPU ranks. UserError when they do
  // not fit.
  std::span<const float> forward(std::span<const int> tokens);
  // Also hands over the logits after every token, in order: visit(position, logits).
  using Visit = std::function<void(std::int64_t, std::span<const float>)>;
  void forward_each(std::span<const int> tokens, const Visit& visit);

  // Makes every step ready that forward() may take: proved, compiled, its memory allocated.
  // Collective on CPU ranks.
  void prepare_steps() {
    for (std::int64_t bound : bounds_) step_for(bound);
  }

  // One step of the other data groups, in which this one has no tokens; false where none has any,
  // and then in all groups at once. A group that is done calls it until then. Collective.
  bool step_with_others();

  // Whether greedy() leaves the choice of tokens to the machine, several steps ahead of `visit`.
  // Not with other data groups, which every step waits for.
  bool chooses_tokens() {
    return runner_->shape().data_groups == 1 && step_for(1).chooses_tokens();
  }
  // Appends `token`, then the one with the largest logit (of equals the lowest), and so on, at most
  // `count` tokens, and calls visit(choice) after each until it returns false; the cache then ends
  // before that choice. UserError when they do not fit, or where logits are no distribution, as
  // engine/sampling.h says.
  void greedy(int token, std::int64_t count, const std::function<bool(int choice)>& visit);

 private:
  ForwardStep& step_for(std::int64_t count);
  ForwardStep& append(std::span<const int> chunk);
  void check_tokens(std::span<const int> tokens) const;

  std::unique_ptr<ModelRunner> runner_;
  std::vector<std::int64_t> bounds_;  // of steps, ascending, none above max_tokens
  std::map<std::int64_t, std::unique_ptr<ForwardStep>> steps_;  // by bound
  std::int64_t past_ = 0;
};

}  // namespace stretto
