// The device beneath a BatchModel (batch_model.h): who keeps a model's weights and its cache of
// pages, and makes its steps. cpu_batch.h does so on one rank of a CPU world, model/gpu/gpu_batch.h
// on all GPUs of a world.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/batch_step.h"

namespace stretto {

// Seconds of a device since it began, as it measured them.
struct DeviceTimes {
  double works = 0;
  // Between two works, nothing being there to do, though the host had more for it (rest()).
  double waits = 0;
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
  // A plan for GPUs runs with as many rows as one of the counts in its bounds. Steps run one after
  // the other, and what one leaves is lost once another runs: the largest, made first, has an arena
  // (step/memory.h) for all.
  virtual std::unique_ptr<BatchStep> make_step(const BatchBounds& bounds) = 0;
  // The largest `count` of all data groups that share experts (ModelShape::shares_experts), each of
  // which calls it before a step: collective over all ranks, those of a group with the same count.
  virtual std::int64_t most_rows(std::int64_t count) { return count; }
  // On a CPU rank: where the tokens are that the last step chose (ModelShape::chosen), which the
  // host writes there. Null on GPUs, where they are written by who chooses them.
  virtual std::int32_t* chosen() { return nullptr; }

  // Around all that a device is given to do, in order. Here it does it at once.
  virtual void begin_work();
  virtual void end_work();
  // The host has nothing for it: until work begins again it does not wait.
  virtual void rest() { ended_.reset(); }
  // As far as work is done.
  virtual DeviceTimes times() { return times_; }

 private:
  using Clock = std::chrono::steady_clock;

  DeviceTimes times_;
  Clock::time_point began_;
  std::optional<Clock::time_point> ended_;
};

}  // namespace stretto
