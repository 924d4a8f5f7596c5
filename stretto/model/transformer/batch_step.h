// A model's step over a cache of pages, ready to run: its plan on what runs it (step/runner.h),
// bound to weights, cache and activations once.
//
// Before: step_plan.h. After: batch_runner.h, which makes them, and batch_model.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stretto/model/choice/token_choice.h"
#include "stretto/model/transformer/step_plan.h"
#include "stretto/step/runner.h"

namespace stretto {

// Where ranks are threads, all calls but input() are collective.
class BatchStep {
 public:
  // `runner` has a plan of plan_step(shape, ...).
  BatchStep(const ModelShape& shape, std::unique_ptr<step::Runner> runner);
  virtual ~BatchStep() = default;
  BatchStep(const BatchStep&) = delete;
  BatchStep& operator=(const BatchStep&) = delete;

  std::int64_t head_rows() const { return head_rows_; }  // that logits() takes at most
  // Where the host writes an input of the body before run(), laid out as the plan has it; no longer
  // once it runs.
  std::byte* input(const std::string& name) { return runner_->input(name); }
  template <typename T>
  T* input_as(const std::string& name) {
    return reinterpret_cast<T*>(input(name));
  }
  virtual void run(const StepRows& rows);
  // Returns once the body that was run last is done, where run() only enqueues; else at once.
  virtual void wait_for_body() {}
  // Logits [count, vocab] of these rows of the last run, at most head_rows(); the same bits on
  // every rank, valid until the next call. Fault where a wait of the step was aborted.
  const float* logits(std::span<const std::int64_t> rows);
  // Whether the device chooses tokens itself, so that their logits stay where they are.
  virtual bool chooses() const { return false; }
  // Chooses for these rows of the last run, at most head_rows(), a wish each; on GPUs returns when
  // that is enqueued. The tokens become rows of kChosenBuffer from `first` on, if there is one.
  virtual void choose(std::span<const std::int64_t> rows, std::span<const ChoiceWish> wishes,
                      std::int64_t first);
  // What came of the last choose(), though another step may be under way since; valid until the
  // next. Fault where a wait of the step was aborted.
  virtual std::span<const ChoiceResult> choices();

 protected:
  const ModelShape& shape() const { return shape_; }
  step::Runner& runner() { return *runner_; }
  void run_head(std::span<const std::int64_t> rows);

 private:
  const ModelShape shape_;
  const std::unique_ptr<step::Runner> runner_;
  const std::int64_t head_rows_;
};

}  // namespace stretto
