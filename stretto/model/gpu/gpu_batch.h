// Steps of a batch (batch_runner.h) on all GPUs of a world, driven by one host thread: a kernel per
// program, activations on every rank, inputs by one copy from page-locked memory, launches on the
// local ranks' streams. The host waits once for each part of the logits that it asks for.
//
// Steps of a few numbers of rows run as captured graphs, one per rank: a step is filled up to the
// next such number (BatchStep::padded). All that changes between replays are the inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_instance.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_runner.h"

namespace stretto {

class GpuBatchStep : public BatchStep {
 public:
  GpuBatchStep(GpuWorld& world, const ModelShape& shape, const GpuBuffers& model_buffers,
               std::int64_t bound, const GpuModelOptions& options);
  ~GpuBatchStep() override;

  std::int64_t head_rows() const override { return plan_.head_rows; }
  std::byte* input(const std::string& name) override;
  std::int64_t padded(std::int64_t count) const override;
  void run(const StepRows& rows) override;
  // Fault where a wait of the step gave up.
  const float* logits(std::span<const std::int64_t> rows) override;

  // For measuring: enqueues the launches of the last run `times` times, head of its first `wanted`
  // rows included, with nothing of the host between them, and waits.
  void replay(int times, std::int64_t wanted);

 private:
  void allocate();
  GpuLaunchArgs bind(const PlanLaunch& launch);
  void set_rows(const StepRows& rows);
  void enqueue_inputs(int rank, const cuda::Stream& stream) const;
  void enqueue_launches(int rank, const cuda::Stream& stream);
  void enqueue_head(std::span<const std::int64_t> rows);
  void enqueue_step(const StepRows& rows);
  void capture();
  void set_early_starts(bool early);
  void finish();  // waits for all ranks

  struct Behind {  // Binding::behind_decodes
    std::size_t tensor;
    std::string buffer;
  };

  GpuWorld& world_;
  const ModelShape shape_;
  const GpuBuffers& model_buffers_;
  const bool graphs_wanted_, early_starts_;
  StepPlan plan_;
  std::vector<std::unique_ptr<GpuInstance>> instances_;  // by program
  std::vector<SymmetricGpuMemory> memory_;
  GpuBuffers buffers_;                            // of this step
  std::map<std::string, std::size_t> row_bytes_;  // likewise
  SymmetricGpuMemory inputs_;                     // one after the other
  std::map<std::string, std::size_t> input_at_;   // offset in them
  std::unique_ptr<cuda::HostMappedMemory> host_inputs_, host_logits_;
  std::vector<GpuLaunchArgs> args_;          // by launch
  std::vector<bool> runs_;                   // by launch: has rows in this step
  std::vector<std::vector<Behind>> behind_;  // by launch
  GpuLaunchArgs head_args_;
  std::size_t head_tensor_ = 0;
  StepRows rows_;                                                // of the last run
  std::map<std::int64_t, std::vector<cuda::GraphExec>> graphs_;  // by rows; by local rank
  bool busy_ = false;  // enqueued work may still read host_inputs_
};

// The GPUs of a world as a BatchModel's machine. The world and `shape.config` must outlive it.
class GpuBatchRunner : public BatchRunner {
 public:
  // As GpuModel; shape.paged is used.
  GpuBatchRunner(GpuWorld& world, const ModelShape& shape, const Checkpoint& checkpoint,
                 const GpuModelOptions& options = {})
      : world_(world), options_(options), model_(world, shape, checkpoint, options) {}

  const ModelShape& shape() const override { return model_.shape(); }
  std::size_t weight_bytes() const { return model_.weight_bytes(); }
  std::unique_ptr<BatchStep> make_step(std::int64_t bound, std::int64_t sequences) override;

 private:
  GpuWorld& world_;
  GpuModelOptions options_;
  GpuModel model_;
};

}  // namespace stretto
