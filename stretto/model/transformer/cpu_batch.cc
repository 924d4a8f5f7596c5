#include "stretto/model/transformer/cpu_batch.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/step/cpu_step.h"

namespace stretto {
namespace {

class CpuBatchStep : public BatchStep {
 public:
  CpuBatchStep(const step::Worlds& worlds, const ModelShape& shape, std::int64_t bound,
               const std::map<std::string, std::byte*>& model_buffers,
               const step::CpuStepOptions& options)
      : CpuBatchStep(worlds, shape, plan_step(shape, bound), model_buffers, options) {}

  std::int64_t head_rows() const override { return head_rows_; }
  std::byte* input(const std::string& name) override { return step_.data(name); }

  void run(const StepRows& rows) override {
    step_.run(kBodySection, batch_extents(shape_, rows, 0));
  }

  const float* logits(std::span<const std::int64_t> rows) override {
    std::byte* to = step_.data(StepPlan::kWanted);
    for (std::int64_t row : rows) {
      std::memcpy(to, hidden_ + static_cast<std::size_t>(row) * row_bytes_, row_bytes_);
      to += row_bytes_;
    }
    step_.run(kHeadSection, batch_extents(shape_, {}, std::ssize(rows)));
    return reinterpret_cast<const float*>(step_.data(StepPlan::kLogits));
  }

 private:
  CpuBatchStep(const step::Worlds& worlds, const ModelShape& shape, StepPlan plan,
               const std::map<std::string, std::byte*>& model_buffers,
               const step::CpuStepOptions& options)
      : shape_(shape),
        head_rows_(plan.head_rows),
        head_input_(plan.head_input),
        step_(worlds, batch_plan(shape, std::move(plan)), model_buffers, options),
        hidden_(step_.data(head_input_)),
        row_bytes_(static_cast<std::size_t>(shape.config->hidden_size) * size_bytes(shape.dtype)) {}

  const ModelShape shape_;
  std::int64_t head_rows_;
  std::string head_input_;
  step::CpuStep step_;
  const std::byte* hidden_;
  std::size_t row_bytes_;
};

}  // namespace

CpuBatchRunner::CpuBatchRunner(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint,
                               const step::CpuStepOptions& options)
    : rank_(rank), options_(options), shape_(shape) {
  shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
  if (shape_.data_groups > 1) group_ = rank.split(ranks_of_group(shape_, rank.index()));
  if (shape_.shares_experts()) meeting_.emplace(rank);
  weights_ =
      load_weights(checkpoint, *shape_.config, shard_spec(shape_, rank.index()), options_.progress);
  for_each_weight(weights_,
                  [&](const std::string& name, const Matrix& m) { buffers_[name] = m.data(); });
  for (const PlanBuffer& b : model_buffers(shape_)) {
    if (buffers_.contains(b.name)) continue;
    try {
      caches_.emplace_back(b.dtype, b.rows, b.cols);
    } catch (const std::bad_alloc&) {
      throw UserError(fmt::format(
          "there is no memory on rank {} for '{}' of the cache, {:.1f} MiB; fewer tokens need less",
          rank.index(), b.name, static_cast<double>(b.bytes()) / (1 << 20)));
    }
    buffers_[b.name] = caches_.back().data();
  }
}

std::unique_ptr<BatchStep> CpuBatchRunner::make_step(const BatchBounds& bounds) {
  ModelShape shape = shape_;
  shape.paged.sequences = bounds.sequences;
  return std::make_unique<CpuBatchStep>(step::Worlds{rank_, group_ ? *group_ : rank_}, shape,
                                        bounds.rows, buffers_, options_);
}

namespace {

// All ranks do the same; the first one tells it.
Progress* progress_of(const Rank& rank, const BatchOptions& options) {
  return rank.index() == 0 ? options.progress : nullptr;
}

}  // namespace

// Here, so that who drives GPUs does not link the executor.
BatchModel::BatchModel(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
                       const BatchOptions& options)
    : BatchModel(std::make_unique<CpuBatchRunner>(
                     rank, batch_shape(config, rank.size(), options), checkpoint,
                     step::CpuStepOptions{.poison = options.poison,
                                          .progress = progress_of(rank, options)}),
                 options.max_rows, progress_of(rank, options)) {}

}  // namespace stretto
