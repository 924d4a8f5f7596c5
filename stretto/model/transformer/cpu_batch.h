// Steps of a batch (batch_runner.h) on one rank of a CPU world: the executor runs each program over
// this rank's share of the weights and of the cache.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/model/transformer/batch_runner.h"
#include "stretto/model/transformer/group_rendezvous.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/runtime/world.h"
#include "stretto/step/cpu_runner.h"

namespace stretto {

class CpuBatchRunner : public BatchRunner {
 public:
  // `checkpoint` is read here only; `shape.config` and the rank must outlive this.
  // shape.weight_dtype is taken from the checkpoint.
  CpuBatchRunner(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint,
                 const step::CpuRunnerOptions& options = {});

  const ModelShape& shape() const override { return shape_; }
  // Collective, in the same order on all ranks.
  std::unique_ptr<BatchStep> make_step(const BatchBounds& bounds) override;
  std::int64_t most_rows(std::int64_t count) override {
    return meeting_ ? meeting_->most(count) : count;
  }
  std::int32_t* chosen() override {
    auto found = buffers_.find(kChosenBuffer);
    return found == buffers_.end() ? nullptr : reinterpret_cast<std::int32_t*>(found->second);
  }

 private:
  Rank& rank_;
  std::shared_ptr<Rank> group_;  // of the own data group, where there are several
  std::optional<GroupRendezvous> meeting_;
  step::CpuRunnerOptions options_;  // with the arena of all steps, which run one after the other
  ModelShape shape_;
  ModelWeights weights_;
  std::vector<Matrix> caches_;
  std::map<std::string, std::byte*> buffers_;  // by the plan's names
};

}  // namespace stretto
