// One plan on the GPUs of a world: a kernel per program, activations on every rank, and launches
// that are enqueued on the local ranks' streams; the host waits once per step, for the logits,
// which every rank has.
//
// A step that fills its bound (decode: one token) runs as one captured graph per rank, from the
// token ids to the logits. What changes between replays, the tokens and how many came before them,
// is read from page-locked memory by a copy that the graph begins with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/launch/gpu_executable.h"
#include "stretto/model/gpu/gpu_model.h"

namespace stretto {

class GpuForwardStep : public ForwardStep {
 public:
  GpuForwardStep(GpuWorld& world, const ModelShape& shape, const GpuBuffers& model_buffers,
                 std::int64_t bound, const GpuModelOptions& options);
  ~GpuForwardStep() override;

  void run(std::span<const int> tokens, std::int64_t past, std::int64_t most) override;
  // Fault where a wait of the step gave up.
  const float* logits(std::int64_t first, std::int64_t count) override;
  std::int64_t head_rows() const override { return plan_.head_rows; }
  // Replays of a graph that ends in the choice and begins with what the one before has chosen; the
  // host enqueues some ahead of the token that it looks at.
  bool chooses_tokens() const override { return plan_.choose.has_value(); }
  void run_greedy(int token, std::int64_t past, std::int64_t count, const Visit& visit) override;

  // For measuring. Enqueues `times` replays of the captured step of one token as it ran last, with
  // nothing of the host between them. UserError where no step was captured yet.
  void replay(int times);
  // Milliseconds on the device for one round of the launches of each program over all layers, the
  // slowest rank's, median of `rounds`, in the order of the plan, each after the other's end; and
  // by how much a captured step, early starts included, is shorter without them (0 for the first
  // launch's, which stays). The cache keeps what the last run left.
  struct StageTime {
    std::string program;
    std::string weights;  // that it reads, of any layer: "gate up"
    int launches = 0;
    double ms = 0, of_step_ms = 0;
    std::size_t weight_bytes = 0;  // read by a rank in these launches
  };
  std::vector<StageTime> time_stages(int rounds);

 private:
  void load_programs();
  // The same number of a rank, and the addresses of ranks, in the world that a program runs in.
  int rank_for(std::size_t program, int rank) const;
  std::vector<CUdeviceptr> addresses_for(std::size_t program,
                                         const std::vector<CUdeviceptr>& of_all) const;
  void launch(std::size_t program, const GpuLaunchArgs& args, int rank, const cuda::Stream& stream);
  void launch(std::size_t program, const GpuLaunchArgs& args);  // on all local ranks
  void allocate();
  void allocate_choice();
  GpuLaunchArgs bind(const PlanLaunch& launch) const;
  void set_inputs(std::span<const int> tokens, std::int64_t past);
  void enqueue_inputs(int rank, const cuda::Stream& stream) const;
  void enqueue_step(int rank, const cuda::Stream& stream);
  void enqueue_logits(const cuda::Stream& stream, std::int64_t count) const;
  void set_extents(const StepRows& rows);
  void capture();
  using UseLaunch = std::function<void(std::size_t program, const GpuLaunchArgs&)>;
  void each_launch_to_choice(const UseLaunch& use);
  void enqueue_next_inputs(int rank, const cuda::Stream& stream) const;
  void capture_greedy();
  void enqueue_greedy();
  void set_early_starts(bool early);
  void finish();  // waits for all ranks
  struct Call {
    std::size_t program = 0;
    const GpuLaunchArgs* args = nullptr;
  };
  double time_calls(const std::vector<Call>& calls, int rounds);

  static constexpr std::size_t kTokensOffset = 16;  // in inputs_: kernels want 16 bytes

  GpuWorld& world_;  // of all data groups, whose streams everything runs on
  GpuWorld& group_;  // of the own one
  const ModelShape shape_;
  const GpuBuffers& model_buffers_;
  StepPlan plan_;
  bool graphs_wanted_, early_starts_;
  std::vector<std::unique_ptr<GpuExecutable>> executables_;  // by program
  std::vector<bool> of_group_;  // by program, where there are several data groups: runs in group_
  std::vector<SymmetricGpuMemory> memory_;
  GpuBuffers buffers_;         // of this step
  SymmetricGpuMemory inputs_;  // [past i64][tokens i32[bound]] on every rank
  std::unique_ptr<cuda::HostMappedMemory> host_inputs_, host_logits_;
  std::vector<GpuLaunchArgs> args_;  // by launch
  GpuLaunchArgs head_args_;
  std::size_t head_tensor_ = 0;
  std::vector<CUdeviceptr> head_input_;
  // Of greedy decoding: inputs of the next step as the choice leaves them, laid out as inputs_;
  // the choices by position, the first local rank's where the host sees them.
  GpuLaunchArgs choose_args_;
  SymmetricGpuMemory next_inputs_, history_;
  std::unique_ptr<cuda::HostMappedMemory> host_history_;
  std::vector<cuda::GraphExec> graphs_, greedy_graphs_;  // by local rank; empty before a capture
  bool warm_ = false;             // a full step has run once, launch by launch
  bool busy_ = false;             // enqueued work may still read host_inputs_
  bool logits_enqueued_ = false;  // by the graph, for row 0
};

}  // namespace stretto
