// Steps of a batch (batch_runner.h) on all GPUs of a world, driven by one host thread: the step
// plan that batch_plan.h makes, a kernel per program, activations on every rank, inputs by one copy
// from page-locked memory, launches on the local ranks' streams. The host waits once for each part
// of the logits that it asks for.
//
// For each number of rows that a step may have (BatchBounds::counts) its launches are always the
// same, and run as one captured graph per rank: all that changes between steps are the inputs.
// Steps of nothing but sequences that go on by a token, whose extent of prompts is 0, have graphs
// of their own. Of data groups that meet at the experts one without tokens makes its steps with
// rows of nobody.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/launch/executable.h"
#include "stretto/model/gpu/gpu_choice.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_runner.h"
#include "stretto/model/transformer/group_rendezvous.h"
#include "stretto/step/plan.h"

namespace stretto {

class GpuBatchStep : public BatchStep {
 public:
  GpuBatchStep(GpuWorld& world, const ModelShape& shape, const GpuBuffers& model_buffers,
               const BatchBounds& bounds, const GpuModelOptions& options);
  ~GpuBatchStep() override;

  // Who chooses tokens, for at least head_rows() rows; outlives this.
  void set_chooser(GpuChooser* chooser) { chooser_ = chooser; }

  std::int64_t head_rows() const override { return head_rows_; }
  std::byte* input(const std::string& name) override;
  void run(const StepRows& rows) override;
  // Fault where a wait of the step gave up.
  const float* logits(std::span<const std::int64_t> rows) override;
  bool chooses() const override { return chooser_ != nullptr; }
  // On the first local rank, which has the logits of all as every rank does.
  std::span<const ChoiceResult> choose(std::span<const std::int64_t> rows,
                                       std::span<const ChoiceWish> wishes) override;

  // For measuring: enqueues the last run `times` times, with the head of its first rows, and
  // waits.
  void replay(int times);

  // A program of the plan, with what all its launches in one step take by themselves.
  struct ProgramTime {
    std::string name;
    int launches = 0;
    double ms = 0;
  };
  // For measuring, after a run: the mean of `times` steps of each program's launches alone, on the
  // last run's inputs. Results are lost.
  std::vector<ProgramTime> time_programs(int times);

 private:
  void load_programs(const GpuModelOptions& options);
  void allocate();
  // The addresses of ranks in the world that a program runs in.
  std::vector<CUdeviceptr> addresses_for(std::size_t program,
                                         const std::vector<CUdeviceptr>& of_all) const;
  Args bind(const step::Node& node) const;
  const std::vector<CUdeviceptr>& addresses_of(const std::string& buffer) const;
  const std::vector<CUdeviceptr>& addresses_of(int buffer) const {
    return addresses_of(plan_.buffers[static_cast<std::size_t>(buffer)].name);
  }
  // A node's launch on where its tensors are now, encoded once.
  Launch& prepared(std::size_t node);
  void launch(std::size_t node, int rank);
  void launch(std::size_t node);  // on all local ranks
  // Of a step with so many rows, all of which go on by a token or not: what launches have.
  void set_rows(std::int64_t count, bool only_decodes);
  std::vector<std::int64_t> values() const;  // of the plan's extents
  std::vector<std::size_t> nodes() const;    // of the body that are not passed over
  void enqueue_inputs(int rank, const cuda::Stream& stream) const;
  void enqueue_step();
  void enqueue_head(std::span<const std::int64_t> rows);
  void capture();
  // Of the inputs and all launches, or of one program's launches alone.
  std::vector<cuda::GraphExec> capture_graphs(std::optional<int> program = {});
  void set_early_starts(bool early);
  void finish();  // waits for all ranks

  GpuWorld& world_;  // of all data groups, whose streams everything runs on
  GpuWorld& group_;  // of the own one
  const ModelShape shape_;
  const GpuBuffers& model_buffers_;
  const bool early_starts_;
  const BatchBounds bounds_;
  std::string head_input_;  // of the plan's buffers
  std::int64_t head_rows_ = 0;
  step::Plan plan_;
  std::size_t head_ = 0;                                  // node
  std::vector<std::unique_ptr<Executable>> executables_;  // by program
  std::vector<bool> of_group_;  // by program, where there are several data groups: runs in group_
  std::vector<SymmetricGpuMemory> memory_;
  GpuBuffers buffers_;                           // of this step
  SymmetricGpuMemory inputs_;                    // one after the other
  std::map<std::string, std::size_t> input_at_;  // offset in them
  std::unique_ptr<cuda::HostMappedMemory> host_inputs_, host_logits_;
  std::vector<Args> args_;                          // by node
  // By node, then by Args::starts_early; null before the first, and where args_ has changed.
  std::vector<std::array<std::shared_ptr<Launch>, 2>> prepared_;
  std::vector<std::vector<std::int64_t>> extents_;  // of launches, by node
  std::size_t head_tensor_ = 0;                     // that has the head's rows
  GpuChooser* chooser_ = nullptr;
  std::int64_t count_ = 0;  // what runs: set_rows()
  bool only_decodes_ = false;
  // By both, then by local rank; empty where none are wanted. The second is true where that leaves
  // launches out.
  std::map<std::pair<std::int64_t, bool>, std::vector<cuda::GraphExec>> graphs_;
  bool busy_ = false;  // enqueued work may still read host_inputs_
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
  std::unique_ptr<GpuChooser> chooser_;  // of all steps, which run one after the other
};

}  // namespace stretto
