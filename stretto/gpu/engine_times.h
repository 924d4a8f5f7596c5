// When a rank's copy engines copied and signalled, by events in their queues: engines write no
// timestamps of their own. EngineQueues puts them there, launches in captured graphs excepted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stretto/codegen/launch_plan.h"
#include "stretto/runtime/cuda/stream.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

class EngineTimes {
 public:
  static constexpr std::size_t kMostSteps = std::size_t{1} << 14;  // each keeps one or two events

  EngineTimes(const cuda::Device& device, int rank) : device_(device), rank_(rank) {}

  // With the rank idle: forgets what was there; `first_epoch` is that of the next launch.
  void begin(const cuda::Stream& stream, std::int64_t first_epoch);
  void end() { enabled_ = false; }
  // Of a launch on this stream: whether its steps are kept.
  void begin_launch(const cuda::Stream& main);

  // Around a step as it is enqueued. What does not fit is counted.
  void before(const EngineStep& step, const cuda::Stream& queue);
  void after(const EngineStep& step, const cuda::Stream& queue);

  // With the rank idle: as copies of their roles' workers and as notifies, and forgets them.
  // Returns how far their times may be off, in ns.
  std::int64_t collect(const Program& program, const LaunchPlan& launch, Recorder& recorder);

 private:
  struct Step {
    EngineStep step;
    std::int64_t epoch = 0;
    std::vector<cuda::Event> events;  // of a copy its begin and end, of a signal its end
  };
  void record(const cuda::Stream& queue);

  const cuda::Device& device_;
  int rank_;
  bool enabled_ = false, keeps_ = false;
  std::int64_t epoch_ = 0, dropped_ = 0;
  std::int64_t host_ns_ = 0, error_ns_ = 0;  // of `reference_`, in Recorder::now_ns
  std::optional<cuda::Event> reference_;
  std::vector<Step> steps_;
};

}  // namespace stretto
