// The machine under a BatchModel (batch_model.h): who keeps a model's weights and its cache of
// pages, and who runs the plans of its steps. cpu_batch.h does so on one rank of a CPU world,
// model/gpu/gpu_batch.h on all GPUs of a world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/model/choice/token_choice.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/step_plan.h"

namespace stretto {

// One plan, bound to weights, cache and activations once, so that a step is a list of launches.
// Where ranks are threads, all calls but input() are collective.
class BatchStep {
 public:
  BatchStep() = default;
  virtual ~BatchStep() = default;
  BatchStep(const BatchStep&) = delete;
  BatchStep& operator=(const BatchStep&) = delete;

  virtual std::int64_t head_rows() const = 0;  // that logits() takes at most
  // Where the host writes an input of the plan (PlanBuffer::input) before run(), laid out as the
  // plan has it; no longer once it runs.
  virtual std::byte* input(const std::string& name) = 0;
  // A plan for GPUs runs with as many rows as one of the counts in its bounds.
  virtual void run(const StepRows& rows) = 0;
  // Logits [count, vocab] of these rows of the last run, at most head_rows(); the same bits on
  // every rank, valid until the next call.
  virtual const float* logits(std::span<const std::int64_t> rows) = 0;
  // Whether the machine chooses tokens itself, so that their logits stay where they are.
  virtual bool chooses() const { return false; }
  // Chooses for these rows of the last run, at most head_rows(), a wish each; valid until the next.
  virtual std::span<const ChoiceResult> choose(std::span<const std::int64_t> rows,
                                               std::span<const ChoiceWish> wishes) {
    (void)rows, (void)wishes;
    throw InternalError("a machine that only gives logits");
  }

  template <typename T>
  T* input_as(const std::string& name) {
    return reinterpret_cast<T*>(input(name));
  }
};

class BatchRunner {
 public:
  BatchRunner() = default;
  virtual ~BatchRunner() = default;
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  virtual const ModelShape& shape() const = 0;
  // Whether BatchStep::run only enqueues.
  virtual bool runs_beside_host() const { return false; }
  virtual std::unique_ptr<BatchStep> make_step(const BatchBounds& bounds) = 0;
  // The largest `count` of all data groups that share experts (ModelShape::shares_experts), each of
  // which calls it before a step: collective over all ranks, those of a group with the same count.
  virtual std::int64_t most_rows(std::int64_t count) { return count; }
};

}  // namespace stretto
