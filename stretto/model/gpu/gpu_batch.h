// Steps of a batch (batch_step.h) on all GPUs of a world, driven by one host thread. The host waits
// once for each part of the logits that it asks for.
//
// For each number of rows that a step may have (BatchBounds::counts) its launches are always the
// same, and run as one captured graph per rank: all that changes between steps are the inputs.
// Steps of nothing but sequences that go on by a token, whose extent of prompts is 0, have graphs
// of their own. Of data groups that meet at the experts one without tokens makes its steps with
// rows of nobody.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "stretto/model/gpu/gpu_choice.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_runner.h"
#include "stretto/model/transformer/group_rendezvous.h"
#include "stretto/step/gpu_runner.h"

namespace stretto {

class GpuBatchStep : public BatchStep {
 public:
  GpuBatchStep(GpuWorld& world, const ModelShape& shape, const step::GpuBuffers& model_buffers,
               const BatchBounds& bounds, const GpuModelOptions& options,
               std::shared_ptr<const SymmetricGpuMemory> arena = nullptr);

  const std::shared_ptr<const SymmetricGpuMemory>& arena() { return gpus().arena(); }
  // Who choose tokens, for at least head_rows() rows; outlive this. The first local rank's tells
  // what it chose. The others', none or one for each, choose the same from the same logits, so that
  // every rank has the tokens that the next step begins with.
  void set_choosers(std::span<const std::unique_ptr<GpuChooser>> choosers) { choosers_ = choosers; }

  void run(const StepRows& rows) override;
  void wait_for_body() override;
  bool chooses() const override { return !choosers_.empty(); }
  void choose(std::span<const std::int64_t> rows, std::span<const ChoiceWish> wishes,
              std::int64_t first) override;
  std::span<const ChoiceResult> choices() override;

  // For measuring: enqueues the last run `times` times, with the head of its first row, and waits.
  void replay(int times);
  // For measuring, after a run: the mean of `times` steps of each program's launches alone, on the
  // last run's inputs. Results are lost.
  std::vector<step::GpuRunner::ProgramTime> time_programs(int times);

 private:
  step::GpuRunner& gpus() { return static_cast<step::GpuRunner&>(runner()); }
  // The extents of a step with so many rows, all of which go on by a token or not.
  std::vector<std::int64_t> extents(std::int64_t count, bool only_decodes) const;
  void capture();

  GpuWorld& world_;
  const BatchBounds bounds_;
  bool decodes_apart_ = false;      // steps of nothing but decodes leave launches out
  std::vector<std::int64_t> last_;  // extents of the last run
  const cuda::Event body_done_;     // on the first local rank
  std::span<const std::unique_ptr<GpuChooser>> choosers_;
};

// When a GPU works and when it waits, by events on its stream: of the first local rank.
class GpuClock {
 public:
  explicit GpuClock(const GpuWorld& world);
  void begin_work();
  void end_work();
  void rest() { rests_ = true; }
  DeviceTimes times();

 private:
  struct Work {
    cuda::Event began, ended;
    bool rested = false;  // before it
  };
  cuda::Event recorded();
  void count_what_is_done();

  const cuda::Device& device_;
  const cuda::Stream& stream_;
  std::optional<cuda::Event> began_;  // of work that is being enqueued
  std::deque<Work> works_;            // under way, the earliest first
  std::optional<cuda::Event> ended_;  // of the last that is counted
  std::vector<cuda::Event> unused_;
  bool rests_ = true;
  DeviceTimes times_;
};

// The GPUs of a world as a BatchModel's device; the world must outlive it.
class GpuBatchRunner : public BatchRunner {
 public:
  // `model` has a cache of pages; several runners may use it one after the other.
  GpuBatchRunner(GpuWorld& world, std::shared_ptr<const GpuModel> model,
                 PagedCache::Attention attention, const GpuModelOptions& options = {});
  // As GpuModel; shape.paged is used.
  GpuBatchRunner(GpuWorld& world, const ModelShape& shape, const Checkpoint& checkpoint,
                 const GpuModelOptions& options = {})
      : GpuBatchRunner(world, std::make_shared<const GpuModel>(world, shape, checkpoint, options),
                       shape.paged.attention, options) {}

  const ModelShape& shape() const override { return shape_; }
  std::unique_ptr<BatchStep> make_step(const BatchBounds& bounds) override;
  void begin_work() override { clock_.begin_work(); }
  void end_work() override { clock_.end_work(); }
  void rest() override { clock_.rest(); }
  DeviceTimes times() override { return clock_.times(); }
  bool runs_beside_host() const override { return true; }
  std::int64_t most_rows(std::int64_t count) override {
    return meeting_ ? meeting_->most(count) : count;
  }

 private:
  GpuWorld& world_;
  std::optional<GroupRendezvous> meeting_;
  std::shared_ptr<const GpuModel> model_;
  ModelShape shape_;
  GpuModelOptions options_;
  // Of all steps, which run one after the other.
  std::shared_ptr<const SymmetricGpuMemory> arena_;
  std::vector<std::unique_ptr<GpuChooser>> choosers_;
  GpuClock clock_;
};

}  // namespace stretto
