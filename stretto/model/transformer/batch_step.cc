#include "stretto/model/transformer/batch_step.h"

#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

std::int64_t bound_of(const step::Plan& plan, const char* extent) {
  return plan.extents[at(plan.find_extent(extent))].bound;
}

bool are_first(std::span<const std::int64_t> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

BatchStep::BatchStep(const ModelShape& shape, std::unique_ptr<step::Runner> runner)
    : shape_(shape), runner_(std::move(runner)), head_rows_(bound_of(runner_->plan(), "wanted")) {}

void BatchStep::run(const StepRows& rows) {
  runner_->run(kBodySection, batch_extents(shape_, rows, {}));
}

void BatchStep::run_head(std::span<const std::int64_t> rows) {
  STRETTO_CHECK(!rows.empty() && std::ssize(rows) <= head_rows_, "logits outside the step");
  // Steps that are filled up are proved for no fewer.
  const std::int64_t count = shape_.fills_steps() ? head_rows_ : std::ssize(rows);
  HeadRows head{.first = count};
  if (!are_first(rows)) {
    head = {.wanted = count};
    runner_->copy_rows(step_buffer::kHidden, rows, step_buffer::kWanted);
  }
  runner_->run(kHeadSection, batch_extents(shape_, {}, head));
}

const float* BatchStep::logits(std::span<const std::int64_t> rows) {
  run_head(rows);
  const std::size_t count = rows.size() * at(shape_.config->vocab_size);
  return reinterpret_cast<const float*>(runner_->read(step_buffer::kLogits, count * sizeof(float)));
}

void BatchStep::choose(std::span<const std::int64_t> /*rows*/,
                       std::span<const ChoiceWish> /*wishes*/, std::int64_t /*first*/) {
  throw InternalError("a device that only gives logits");
}

std::span<const ChoiceResult> BatchStep::choices() {
  throw InternalError("a device that only gives logits");
}

}  // namespace stretto
