#include "stretto/gpu/engine_times.h"

#include <cmath>

#include "stretto/codegen/signal_place.h"

namespace stretto {

// The host reads its clock before and after an event that nothing delays (Cristian, Probabilistic
// clock synchronization, 1989).
void EngineTimes::begin(const cuda::Stream& stream, std::int64_t first_epoch) {
  constexpr int kQuestions = 20;
  steps_.clear();
  dropped_ = 0;
  epoch_ = first_epoch - 1;  // the launch that comes is the next
  enabled_ = true;
  reference_.reset();
  for (int i = 0; i < kQuestions; ++i) {
    cuda::Event asked(device_, cuda::Event::Timing::kOn);
    std::int64_t before = Recorder::now_ns();
    stream.record(asked);
    asked.synchronize();
    std::int64_t took = Recorder::now_ns() - before;
    if (reference_ && took / 2 >= error_ns_) continue;
    reference_ = std::move(asked);
    error_ns_ = took / 2;
    host_ns_ = before + error_ns_;
  }
}

void EngineTimes::begin_launch(const cuda::Stream& main) {
  keeps_ = enabled_ && main.capture_id() == 0;
  ++epoch_;
}

void EngineTimes::record(const cuda::Stream& queue) {
  queue.record(steps_.back().events.emplace_back(device_, cuda::Event::Timing::kOn));
}

void EngineTimes::before(const EngineStep& step, const cuda::Stream& queue) {
  if (!keeps_ || step.kind == EngineStep::Kind::kAwaitBell) return;
  if (steps_.size() >= kMostSteps) {
    ++dropped_;
    return;
  }
  steps_.push_back({.step = step, .epoch = epoch_, .events = {}});
  if (step.kind == EngineStep::Kind::kCopy) record(queue);
}

void EngineTimes::after(const EngineStep& step, const cuda::Stream& queue) {
  if (!keeps_ || step.kind == EngineStep::Kind::kAwaitBell || dropped_ > 0) return;
  record(queue);
}

std::int64_t EngineTimes::collect(const Program& program, const LaunchPlan& launch,
                                  Recorder& recorder) {
  const char* name = recorder.intern(program.name);
  auto time = [&](const cuda::Event& event) {
    return host_ns_ + std::llround(1e6 * cuda::elapsed_ms(*reference_, event));
  };
  const std::vector<EngineMark>& marks = launch.engines.marks[static_cast<std::size_t>(rank_)];
  for (const Step& s : steps_) {
    const char* role = recorder.intern(program.roles[static_cast<std::size_t>(s.step.role)].name);
    if (s.step.kind == EngineStep::Kind::kCopy) {
      recorder.add(Span{.kind = SpanKind::kCopy,
                        .rank = rank_,
                        .worker = s.step.worker,
                        .program = name,
                        .role = role,
                        .tile = s.step.tile,
                        .epoch = s.epoch,
                        .begin_ns = time(s.events.front()),
                        .end_ns = time(s.events.back())});
      continue;
    }
    const EngineMark& mark = marks[static_cast<std::size_t>(s.step.mark)];
    auto [signal, channel] = signal_place(launch.signal_offsets, mark.counter);
    recorder.add(NotifyMark{.from_rank = rank_,
                            .to_rank = mark.rank,
                            .worker = s.step.worker,
                            .program = name,
                            .role = role,
                            .signal = recorder.intern(program.signals[signal].name),
                            .channel = channel,
                            .epoch = s.epoch,
                            .time_ns = time(s.events.back())});
  }
  recorder.add_dropped(rank_, dropped_);
  steps_.clear();
  dropped_ = 0;
  return error_ns_;
}

}  // namespace stretto
