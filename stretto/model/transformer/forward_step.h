// The machine under a Transformer: who keeps a model's weights and cache, and who runs its steps.
// What a step is stands in step_plan.h; cpu_model.h runs plans on one rank of a CPU world,
// model/gpu/gpu_model.h on all GPUs of a world.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "stretto/model/transformer/step_plan.h"

namespace stretto {

// One plan, bound to weights, cache and its own activations once, so that a step is a list of
// launches. Where ranks are threads, all calls are collective.
class ForwardStep {
 public:
  ForwardStep() = default;
  virtual ~ForwardStep() = default;
  ForwardStep(const ForwardStep&) = delete;
  ForwardStep& operator=(const ForwardStep&) = delete;

  // Appends tokens (0 < count <= most <= bound, past + count <= max_tokens) to the cache. `most`:
  // of any data group, ModelRunner::most_rows(); without tokens only what other groups need is
  // done.
  virtual void run(std::span<const int> tokens, std::int64_t past, std::int64_t most) = 0;
  // Logits of rows [first, first + count) of the last run, count <= head_rows(); [count, vocab],
  // the same bits on every rank, valid until the next call.
  virtual const float* logits(std::int64_t first, std::int64_t count) = 0;
  virtual std::int64_t head_rows() const = 0;

  // Whether the machine can go from a token to the next one by itself.
  virtual bool chooses_tokens() const { return false; }
  // Appends `token`, the choice after it and so on, `count` tokens (past + count <= max_tokens),
  // and calls visit(choice) with each that follows, or kNoToken (ops/greedy/greedy.h), until it
  // returns false. More tokens than that may then stand in the cache.
  using Visit = std::function<bool(int choice)>;
  virtual void run_greedy(int token, std::int64_t past, std::int64_t count, const Visit& visit);
};

class ModelRunner {
 public:
  ModelRunner() = default;
  virtual ~ModelRunner() = default;
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  virtual const ModelShape& shape() const = 0;
  virtual std::size_t weight_bytes() const = 0;  // of one rank
  virtual std::unique_ptr<ForwardStep> make_step(std::int64_t bound) = 0;
  // The largest `count` of all data groups, each of which calls it before a step: collective over
  // all ranks, those of a group with the same count.
  virtual std::int64_t most_rows(std::int64_t count) { return count; }
};

}  // namespace stretto
