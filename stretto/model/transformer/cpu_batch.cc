#include "stretto/model/transformer/cpu_batch.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {
namespace {

class CpuBatchStep : public BatchStep {
 public:
  CpuBatchStep(Rank& rank, const ModelShape& shape, StepPlan plan,
               const std::map<std::string, std::byte*>& model_buffers)
      : rank_(rank), shape_(shape), plan_(std::move(plan)) {
    for (Program& program : plan_.programs) {
      instances_.push_back(std::make_unique<Instance>(rank_, prove(lower(std::move(program)))));
    }
    for (const auto& [name, data] : model_buffers) buffers_[name] = {.data = data};
    for (const PlanBuffer& b : plan_.buffers) {
      buffers_[b.name] = allocate(b);
      row_bytes_[b.name] = static_cast<std::int64_t>(b.bytes()) / b.rows;
    }
    for (const PlanLaunch& l : plan_.launches) args_.push_back(bind(l));
    head_args_ = bind(plan_.head);
  }
  ~CpuBatchStep() override {
    instances_.clear();
    for (auto& buffer : symmetric_) rank_.release(*buffer);
  }

  const StepPlan& plan() const override { return plan_; }
  std::byte* input(const std::string& name) override { return data(name); }

  void run(const StepRows& rows) override {
    for (std::size_t i = 0; i < args_.size(); ++i) {
      const PlanLaunch& launch = plan_.launches[i];
      std::vector<std::int64_t> extents = launch_extents(launch, rows, shape_);
      if (extents.front() == 0) continue;  // the same on every rank
      args_[i].extents = std::move(extents);
      for (const Behind& b : behind_[i]) {
        args_[i].tensors[b.tensor].data = b.data + rows.decodes * b.row_bytes;
      }
      instances_[launch.program]->launch(args_[i]);
    }
  }

  const float* logits(std::span<const std::int64_t> rows) override {
    std::int64_t bytes = row_bytes_.at(StepPlan::kWanted);
    std::byte* to = data(StepPlan::kWanted);
    for (std::int64_t row : rows) {
      std::memcpy(to, data(plan_.head_input) + row * bytes, static_cast<std::size_t>(bytes));
      to += bytes;
    }
    head_args_.extents = {static_cast<std::int64_t>(rows.size())};
    instances_[plan_.head.program]->launch(head_args_);
    return reinterpret_cast<const float*>(data(StepPlan::kLogits));
  }

 private:
  struct Behind {  // Binding::behind_decodes
    std::size_t tensor;
    std::byte* data;
    std::int64_t row_bytes;
  };

  std::byte* data(const std::string& name) const {
    return static_cast<std::byte*>(buffers_.at(name).data);
  }

  TensorArg allocate(const PlanBuffer& b) {
    if (!b.symmetric) {
      activations_.emplace_back(b.dtype, b.rows, b.cols);
      return {.data = activations_.back().data()};
    }
    symmetric_.push_back(std::make_unique<SymmetricBuffer>(
        rank_.allocate(b.name, b.dtype, static_cast<std::size_t>(b.rows * b.cols))));
    SymmetricBuffer& s = *symmetric_.back();
    return {.data = s.at[static_cast<std::size_t>(rank_.index())], .symmetric = &s};
  }

  LaunchArgs bind(const PlanLaunch& launch) {
    const Program& program = instances_[launch.program]->program();
    LaunchArgs args;
    args.tensors.resize(program.tensors.size());
    std::vector<Behind> behind;
    for (const Binding& b : launch.bindings) {
      int t = program.find_tensor(b.tensor);
      STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
      args.tensors[static_cast<std::size_t>(t)] = buffers_.at(b.buffer);
      if (!b.behind_decodes) continue;
      behind.push_back({static_cast<std::size_t>(t), data(b.buffer), row_bytes_.at(b.buffer)});
    }
    behind_.push_back(std::move(behind));
    return args;
  }

  Rank& rank_;
  const ModelShape& shape_;
  StepPlan plan_;
  std::vector<std::unique_ptr<Instance>> instances_;  // by program
  std::map<std::string, TensorArg> buffers_;
  std::map<std::string, std::int64_t> row_bytes_;  // of the plan's buffers
  std::vector<Matrix> activations_;
  std::vector<std::unique_ptr<SymmetricBuffer>> symmetric_;
  std::vector<LaunchArgs> args_;             // by launch
  std::vector<std::vector<Behind>> behind_;  // by launch
  LaunchArgs head_args_;
};

}  // namespace

CpuBatchRunner::CpuBatchRunner(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint)
    : rank_(rank), shape_(shape) {
  shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
  weights_ = load_weights(checkpoint, *shape_.config, shard_spec(shape_, rank.index()));
  for_each_weight(weights_,
                  [&](const std::string& name, const Matrix& m) { buffers_[name] = m.data(); });
  for (const PlanBuffer& b : model_buffers(shape_)) {
    if (buffers_.contains(b.name)) continue;
    caches_.emplace_back(b.dtype, b.rows, b.cols);
    buffers_[b.name] = caches_.back().data();
  }
}

std::unique_ptr<BatchStep> CpuBatchRunner::make_step(std::int64_t bound, std::int64_t sequences) {
  ModelShape shape = shape_;
  shape.paged.sequences = sequences;
  return std::make_unique<CpuBatchStep>(rank_, shape_, plan_step(shape, bound), buffers_);
}

// Here, so that who drives GPUs does not link the executor.
BatchModel::BatchModel(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
                       const BatchOptions& options)
    : BatchModel(std::make_unique<CpuBatchRunner>(rank, batch_shape(config, rank.size(), options),
                                                  checkpoint),
                 options.max_rows) {}

}  // namespace stretto
