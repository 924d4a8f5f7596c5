// GpuForwardStep::run_greedy: the host is told of a token some steps after the GPUs went on from
// it, and what they did after the last one is not looked at.
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/model/gpu/gpu_forward_step.h"

namespace stretto {
namespace {

// Steps enqueued beyond the token that the host looks at: enough that no GPU waits for it, and few
// enough that little is thrown away at the end of a text.
constexpr std::int64_t kAhead = 3;

}  // namespace

void GpuForwardStep::allocate_choice() {
  std::size_t bytes = static_cast<std::size_t>(shape_.max_tokens) * sizeof(std::int32_t);
  next_inputs_ = world_.allocate(inputs_.on[0].bytes());
  history_ = world_.allocate(bytes);
  host_history_ =
      std::make_unique<cuda::HostMappedMemory>(world_.device(world_.local_ranks().front()), bytes);
  for (CUdeviceptr a : next_inputs_.addresses()) {
    buffers_[StepPlan::kNextPast].push_back(a);
    buffers_[StepPlan::kNextToken].push_back(a + kTokensOffset);
  }
  buffers_[StepPlan::kHistory] = history_.addresses();
  auto first = static_cast<std::size_t>(world_.local_ranks().front());
  buffers_[StepPlan::kHistory][first] = host_history_->address();
}

// In order, head and choice included.
void GpuForwardStep::each_launch_to_choice(const UseLaunch& use) {
  head_args_.tensors[head_tensor_] = head_input_;
  head_args_.extents = {1};
  for (std::size_t i = 0; i < args_.size(); ++i) {
    use(plan_.launches[i].program, args_[i]);
  }
  use(plan_.head.program, head_args_);
  use(plan_.choose->program, choose_args_);
}

void GpuForwardStep::enqueue_next_inputs(int rank, const cuda::Stream& stream) const {
  auto at = static_cast<std::size_t>(rank);
  stream.copy(inputs_.on[at].address(), next_inputs_.on[at].address(), inputs_.on[at].bytes());
}

void GpuForwardStep::capture_greedy() {
  std::vector<cuda::GraphExec> graphs;
  set_early_starts(early_starts_);
  for (int r : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(r);
    graphs.push_back(cuda::capture(stream, [&] {
      enqueue_next_inputs(r, stream);
      each_launch_to_choice([&](std::size_t program, const GpuLaunchArgs& args) {
        launch(program, args, r, stream);
      });
    }));
  }
  set_early_starts(false);
  greedy_graphs_ = std::move(graphs);  // of all ranks, or none
}

// The first step runs launch by launch, so that an error names its launch.
void GpuForwardStep::enqueue_greedy() {
  if (graphs_wanted_ && warm_) {
    if (greedy_graphs_.empty()) capture_greedy();
    for (int r : world_.local_ranks()) {
      greedy_graphs_[world_.local_index(r)].launch(world_.stream(r));
    }
    return;
  }
  for (int r : world_.local_ranks()) enqueue_next_inputs(r, world_.stream(r));
  each_launch_to_choice(
      [&](std::size_t program, const GpuLaunchArgs& args) { launch(program, args); });
  warm_ = true;
}

void GpuForwardStep::run_greedy(int token, std::int64_t past, std::int64_t count,
                                const Visit& visit) {
  STRETTO_CHECK(plan_.choose && count >= 1 && past + count <= shape_.max_tokens,
                "greedy steps outside the cache");
  set_inputs({&token, 1}, past);
  set_extents({.count = 1, .past = past, .most = 1});
  logits_enqueued_ = false;
  for (int r : world_.local_ranks()) {
    const cuda::DeviceMemory& next = next_inputs_.on[static_cast<std::size_t>(r)];
    world_.stream(r).upload(next.address(), host_inputs_->host(), host_inputs_->bytes());
  }
  std::vector<cuda::Event> chosen;  // in turn
  for (std::int64_t i = 0; i <= kAhead; ++i)
    chosen.emplace_back(world_.device(world_.local_ranks().front()));
  auto event_of = [&](std::int64_t step) -> const cuda::Event& {
    return chosen[static_cast<std::size_t>(step % (kAhead + 1))];
  };
  const auto* history = static_cast<const volatile std::int32_t*>(host_history_->host());
  std::int64_t enqueued = 0;
  bool more = true;
  for (std::int64_t step = 0; step < count && more; ++step) {
    for (; enqueued < count && enqueued <= step + kAhead; ++enqueued) {
      enqueue_greedy();
      world_.stream(world_.local_ranks().front()).record(event_of(enqueued));
    }
    event_of(step).synchronize();
    if (world_.aborted()) break;
    more = visit(history[past + step]);
  }
  finish();
}

}  // namespace stretto
