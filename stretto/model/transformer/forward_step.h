// One bucket of a model's forward pass on one rank: every operator instance compiled for at most
// `bound` new tokens, bound to its weights and activations once, so that a step is a list of
// launches. Two plans (data in step.cc): replicated rows (decode; GEMM + all-reduce) and sequence
// parallel (prefill; all-gather + GEMM, GEMM + reduce-scatter).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/model/transformer/rope_table.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {

// What the steps of a model share on one rank.
struct ModelState {
  const ModelConfig* config = nullptr;
  ShardSpec spec;
  std::int64_t max_tokens = 0;
  ModelWeights weights;
  RopeTable rope;
  std::vector<Matrix> k_cache, v_cache;  // per layer [Hkv * max_tokens, head_dim]
};

class ForwardStep {
 public:
  // Collective: every rank constructs the same steps in the same order.
  ForwardStep(Rank& rank, ModelState& state, std::int64_t bound);
  ~ForwardStep();
  ForwardStep(const ForwardStep&) = delete;
  ForwardStep& operator=(const ForwardStep&) = delete;

  std::int64_t bound() const { return bound_; }
  // Appends tokens (0 < count <= bound, past + count <= max_tokens) to the cache.
  void run(const int* tokens, std::int64_t count, std::int64_t past);
  // Logits of rows [first, first + count) of the last run, count <= kHeadRows; [count, vocab],
  // the same bits on every rank. Collective.
  const float* logits(std::int64_t first, std::int64_t count);

  static constexpr std::int64_t kHeadRows = 16;

 private:
  enum class Rows { kAll, kOwn, kAllAndPast, kHead };
  struct Launch {
    Instance* instance;
    LaunchArgs args;
    Rows rows;
  };
  struct Binding {
    const char* tensor;
    TensorArg arg;
  };

  Instance* add_instance(Program program);
  void add_launch(Instance* instance, Rows rows, const std::vector<Binding>& bindings);
  // Activations of `rows` x `cols`.
  TensorArg local(std::int64_t rows, std::int64_t cols, DType dtype);
  TensorArg symmetric(const std::string& name, std::int64_t rows, std::int64_t cols);
  void build_replicated();
  void build_sequence_parallel();
  struct AttentionPart;
  AttentionPart make_attention_part();
  void add_attention(const AttentionPart& part, std::size_t layer);
  void add_head(const TensorArg& normed);

  Rank& rank_;
  ModelState& state_;
  std::int64_t bound_, own_rows_;
  std::int64_t hidden_, ffn_, vocab_;
  DType dtype_, weight_dtype_;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<Matrix> activations_;
  std::vector<std::unique_ptr<SymmetricBuffer>> symmetric_;
  std::vector<Launch> launches_;
  std::unique_ptr<Launch> head_;
  Matrix tokens_, logits_;
  std::byte* normed_ = nullptr;  // [bound, hidden] rows that the LM head reads
};

}  // namespace stretto
