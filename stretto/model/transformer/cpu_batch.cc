#include "stretto/model/transformer/cpu_batch.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/model/transformer/step_plan.h"
#include "stretto/step/cpu_runner.h"

namespace stretto {

CpuBatchRunner::CpuBatchRunner(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint,
                               const step::CpuRunnerOptions& options)
    : rank_(rank), options_(options), shape_(shape) {
  shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
  if (shape_.data_groups > 1) group_ = rank.split(ranks_of_group(shape_, rank.index()));
  if (shape_.shares_experts()) meeting_.emplace(rank);
  weights_ =
      load_weights(checkpoint, *shape_.config, shard_spec(shape_, rank.index()), options_.progress);
  for_each_weight(weights_,
                  [&](const std::string& name, const Matrix& m) { buffers_[name] = m.data(); });
  for (const step::Buffer& b : model_buffers(shape_)) {
    if (buffers_.contains(b.name)) continue;
    const std::vector<std::int64_t> dims = step::eval(b.shape, {});
    try {
      caches_.emplace_back(b.dtype, dims[0], dims[1]);
    } catch (const std::bad_alloc&) {
      throw UserError(fmt::format(
          "there is no memory on rank {} for '{}' of the cache, {:.1f} MiB; fewer tokens need less",
          rank.index(), b.name, static_cast<double>(step::num_bytes(b)) / (1 << 20)));
    }
    buffers_[b.name] = caches_.back().data();
  }
}

std::unique_ptr<BatchStep> CpuBatchRunner::make_step(const BatchBounds& bounds) {
  ModelShape shape = shape_;
  shape.paged.sequences = bounds.sequences;
  const step::Worlds worlds{rank_, group_ ? *group_ : rank_};
  auto runner = std::make_unique<step::CpuRunner>(worlds, plan_step(shape, bounds.rows).plan,
                                                  buffers_, options_);
  options_.arena = runner->arena();
  return std::make_unique<BatchStep>(shape, std::move(runner));
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
                     step::CpuRunnerOptions{.poison = options.poison,
                                            .progress = progress_of(rank, options)}),
                 options.max_rows, progress_of(rank, options)) {}

}  // namespace stretto
