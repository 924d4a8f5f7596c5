#include "contest.h"

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/statistics.h"

namespace stretto::python {
namespace {

constexpr int kFewSamples = 2, kLeastSamples = 12, kMostSamples = 60;
constexpr double kMsOfGraph = 0.2;
constexpr int kMostCallsOfGraph = 16;

RanksCall call_of(const std::vector<TimedLaunch>& launches, const cuda::Stream& stream) {
  if (launches.empty()) return {};
  return [&launches, &stream](int turn) {
    for (const TimedLaunch& launch : launches) {
      const auto& args = launch.turns[static_cast<std::size_t>(turn) % launch.turns.size()];
      launch.executable->enqueue(args, launch.extents, launch.said, stream);
    }
  };
}

int num_turns(const std::vector<TimedLaunch>& launches) {
  std::size_t most = 1;
  for (const TimedLaunch& launch : launches) most = std::max(most, launch.turns.size());
  return static_cast<int>(most);
}

}  // namespace

Contest contest(Session& session, const std::vector<TimedLaunch>& made,
                const std::vector<TimedLaunch>& fastest, double ms_of_samples) {
  STRETTO_CHECK(!made.empty(), "something to time");
  GpuSide& gpu = session.gpu();
  gpu.synchronize();  // what the caller has enqueued on streams of its own
  const GpuWorld& world = gpu.world();
  cuda::ContextScope scope(*gpu.device().context());
  const cuda::Stream& stream = world.stream(world.local_ranks().front());
  RanksCall ours = call_of(made, stream), theirs = call_of(fastest, stream);

  RanksTimeOptions options{.num_sets = num_turns(made), .warmup_ms = 0, .samples = kFewSamples};
  options.calls_per_graph = options.num_sets;
  const double ms = std::max(median(time_ranks(world, {ours}, options).front()), 1e-3);
  const int in_graph = std::clamp(static_cast<int>(kMsOfGraph / ms), 1, kMostCallsOfGraph);
  options.calls_per_graph = (in_graph + options.num_sets - 1) / options.num_sets * options.num_sets;
  if (ms_of_samples > 0) {
    const double samples = ms_of_samples / (ms * options.calls_per_graph);
    options.samples = static_cast<int>(std::clamp<double>(samples, kLeastSamples, kMostSamples));
  }
  options.warmup_ms = ms_of_samples / 2;
  return time_against(world, ours, theirs, options);
}

}  // namespace stretto::python
