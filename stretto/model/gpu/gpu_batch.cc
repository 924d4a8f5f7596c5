#include "stretto/model/gpu/gpu_batch.h"

#include <algorithm>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto {
namespace {

std::unique_ptr<step::Runner> make_runner(GpuWorld& world, const ModelShape& shape,
                                          const step::GpuBuffers& model_buffers,
                                          const BatchBounds& bounds, const GpuModelOptions& options,
                                          std::shared_ptr<const SymmetricGpuMemory> arena) {
  step::Plan plan = plan_step(shape, bounds.rows).plan;
  step::GpuRunnerOptions of_runner{.proofs = step_proofs(shape, plan, bounds, world.target()),
                                   .copied = {step_buffer::kWanted},
                                   .early_starts = options.early_starts,
                                   .arena = std::move(arena),
                                   .poison = options.poison,
                                   .progress = options.progress};
  const step::GpuWorlds worlds{world, options.data_group ? options.data_group->world : world};
  return std::make_unique<step::GpuRunner>(worlds, std::move(plan), model_buffers, of_runner);
}

}  // namespace

GpuBatchStep::GpuBatchStep(GpuWorld& world, const ModelShape& shape,
                           const step::GpuBuffers& model_buffers, const BatchBounds& bounds,
                           const GpuModelOptions& options,
                           std::shared_ptr<const SymmetricGpuMemory> arena)
    : BatchStep(shape, make_runner(world, shape, model_buffers, bounds, options, std::move(arena))),
      world_(world),
      bounds_(bounds),
      body_done_(world.device(world.local_ranks().front())) {
  // A step of nothing but decodes is filled up with such rows where there is room for them.
  const bool fills_with_decodes = shape.fills_by_kind() && bounds.rows <= shape.paged.sequences;
  decodes_apart_ =
      fills_with_decodes && gpus().nodes_of(kBodySection, extents(bounds.rows, true)) !=
                                gpus().nodes_of(kBodySection, extents(bounds.rows, false));
  if (!options.graphs) return;
  if (options.progress != nullptr) options.progress->begin("capturing the launches");
  capture();
}

std::vector<std::int64_t> GpuBatchStep::extents(std::int64_t count, bool only_decodes) const {
  const StepRows all{.count = count, .most = count, .decodes = only_decodes ? count : 0};
  return batch_extents(shape(), all, {});
}

void GpuBatchStep::capture() {
  for (std::int64_t count : bounds_.counts) {
    gpus().capture(kBodySection, extents(count, false));
    if (decodes_apart_) gpus().capture(kBodySection, extents(count, true));
  }
}

void GpuBatchStep::run(const StepRows& rows) {
  STRETTO_CHECK(std::ranges::count(bounds_.counts, rows.count) == 1,
                "a step that was not filled up");
  // Launches for prompts, of which there are none, do nothing.
  last_ = extents(rows.count, decodes_apart_ && rows.decodes == rows.count);
  runner().run(kBodySection, last_);
  world_.stream(world_.local_ranks().front()).record(body_done_);
}

void GpuBatchStep::wait_for_body() { gpus().wait_for(body_done_); }

void GpuBatchStep::choose(std::span<const std::int64_t> rows, std::span<const ChoiceWish> wishes,
                          std::int64_t first) {
  STRETTO_CHECK(rows.size() == wishes.size(), "choices outside the step");
  run_head(rows);
  const std::vector<CUdeviceptr>& logits = gpus().addresses(step_buffer::kLogits);
  for (std::size_t i = 0; i < choosers_.size(); ++i) {
    const int rank = world_.local_ranks()[i];
    CUdeviceptr chosen = 0;
    if (shape().chosen > 0) {
      STRETTO_CHECK(first + std::ssize(rows) <= shape().chosen, "more choices than there is room");
      chosen = gpus().addresses(kChosenBuffer)[at(rank)] + at(first) * sizeof(std::int32_t);
    }
    choosers_[i]->enqueue(world_.stream(rank), logits[at(rank)], wishes, chosen);
  }
}

std::span<const ChoiceResult> GpuBatchStep::choices() {
  gpus().wait_for(choosers_.front()->done());
  return choosers_.front()->results();
}

void GpuBatchStep::replay(int times) {
  for (int i = 0; i < times; ++i) {
    runner().run(kBodySection, last_);
    run_head(std::vector<std::int64_t>{0});
  }
  gpus().wait();
}

std::vector<step::GpuRunner::ProgramTime> GpuBatchStep::time_programs(int times) {
  std::vector<step::GpuRunner::ProgramTime> out = gpus().time_programs(kBodySection, last_, times);
  for (step::GpuRunner::ProgramTime& head : gpus().time_programs(
           kHeadSection, batch_extents(shape(), {}, {.first = head_rows()}), times)) {
    out.push_back(std::move(head));
  }
  return out;
}

GpuClock::GpuClock(const GpuWorld& world)
    : device_(world.device(world.local_ranks().front())),
      stream_(world.stream(world.local_ranks().front())) {}

cuda::Event GpuClock::recorded() {
  if (unused_.empty()) unused_.emplace_back(device_, cuda::Event::Timing::kOn);
  cuda::Event event = std::move(unused_.back());
  unused_.pop_back();
  stream_.record(event);
  return event;
}

void GpuClock::begin_work() {
  count_what_is_done();
  began_ = recorded();
}

void GpuClock::end_work() {
  works_.push_back({.began = std::move(began_.value()),
                    .ended = recorded(),
                    .rested = std::exchange(rests_, false)});
  began_.reset();
}

void GpuClock::count_what_is_done() {
  while (!works_.empty() && works_.front().ended.ready()) {
    Work done = std::move(works_.front());
    works_.pop_front();
    times_.works += cuda::elapsed_ms(done.began, done.ended) / 1e3;
    if (ended_ && !done.rested) times_.waits += cuda::elapsed_ms(*ended_, done.began) / 1e3;
    if (ended_) unused_.push_back(*std::exchange(ended_, std::nullopt));
    ended_ = std::move(done.ended);
    unused_.push_back(std::move(done.began));
  }
}

DeviceTimes GpuClock::times() {
  count_what_is_done();
  return times_;
}

GpuBatchRunner::GpuBatchRunner(GpuWorld& world, std::shared_ptr<const GpuModel> model,
                               PagedCache::Attention attention, const GpuModelOptions& options)
    : world_(world),
      model_(std::move(model)),
      shape_(model_->shape()),
      options_(options),
      clock_(world) {
  shape_.paged.attention = attention;
  shape_.swapped_expert_rows = options.swapped_expert_rows.value_or(shape_.swapped_expert_rows);
  shape_.fused_expert_rows = options.fused_expert_rows.value_or(shape_.fused_expert_rows);
  if (shape_.shares_experts()) meeting_.emplace(options.data_group->rank);
}

std::unique_ptr<BatchStep> GpuBatchRunner::make_step(const BatchBounds& bounds) {
  ModelShape shape = shape_;
  shape.paged.sequences = bounds.sequences;
  auto step =
      std::make_unique<GpuBatchStep>(world_, shape, model_->buffers(), bounds, options_, arena_);
  arena_ = step->arena();
  // Every step has as many rows of the head at most as the largest, which is made first.
  const std::size_t num_choosers = shape_.chosen > 0 ? world_.local_ranks().size() : 1;
  for (std::size_t i = choosers_.size(); i < num_choosers; ++i) {
    const int rank = world_.local_ranks()[i];
    choosers_.push_back(std::make_unique<GpuChooser>(world_.device(rank), shape_.config->vocab_size,
                                                     step->head_rows()));
  }
  STRETTO_CHECK(step->head_rows() <= choosers_.front()->max_rows(),
                "a step with more rows than the first");
  step->set_choosers(choosers_);
  return step;
}

}  // namespace stretto
