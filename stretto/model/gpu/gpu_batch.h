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
  // Who chooses tokens, for at least head_rows() rows; outlives this.
  void set_chooser(GpuChooser* chooser) { chooser_ = chooser; }

  void run(const StepRows& rows) override;
  bool chooses() const override { return chooser_ != nullptr; }
  // On the first local rank, which has the logits of all as every rank does.
  std::span<const ChoiceResult> choose(std::span<const std::int64_t> rows,
                                       std::span<const ChoiceWish> wishes) override;

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
  GpuChooser* chooser_ = nullptr;
};

// The GPUs of a world as a BatchModel's machine, which must outlive it.
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
  std::unique_ptr<GpuChooser> chooser_;
};

}  // namespace stretto
