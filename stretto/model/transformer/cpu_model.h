// A model on one rank of a CPU world: weights cut to the rank's share, a KV cache, and steps whose
// programs the executor interprets. A data group of ranks is a world of its own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stretto/model/transformer/forward_step.h"
#include "stretto/model/transformer/group_meeting.h"
#include "stretto/model/transformer/rope_table.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/runtime/world.h"

namespace stretto {

class CpuModel : public ModelRunner {
 public:
  // Collective. `shape.config` must outlive the model, `checkpoint` is read here only.
  // shape.weight_dtype is taken from the checkpoint.
  CpuModel(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint);

  const ModelShape& shape() const override { return shape_; }
  std::size_t weight_bytes() const override { return weights_.bytes(); }
  // Collective: every rank makes the same steps in the same order.
  std::unique_ptr<ForwardStep> make_step(std::int64_t bound) override;
  std::int64_t most_rows(std::int64_t count) override {
    return meeting_ ? meeting_->most(count) : count;
  }

  // This rank in a world: of all ranks, or of those of its data group.
  struct Worlds {
    Rank& all;
    Rank& group;
  };

 private:
  Rank& rank_;
  std::shared_ptr<Rank> group_;  // null: one group
  ModelShape shape_;
  ModelWeights weights_;
  RopeTable rope_;
  std::vector<Matrix> caches_;
  std::map<std::string, std::byte*> buffers_;  // by the plan's names
  std::optional<GroupMeeting> meeting_;        // where there are several groups
};

}  // namespace stretto
