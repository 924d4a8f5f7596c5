#include "apps/predicted_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace stretto {
namespace {

// Where a copy of the prediction stands.
struct TracedLaunch {
  std::int64_t epoch = 0, begin_ns = 0;
};

class PredictedTrace {
 public:
  PredictedTrace(const predict::Prediction& p, const std::vector<TracedLaunch>& launches)
      : plan_(p.timetable),
        program_(*p.timetable.program),
        recorder_(program_.world_size,
                  launches.size() * (p.run.spans.size() + p.run.notifies.size() + 1)),
        name_(recorder_.intern(program_.name)) {
    for (const TracedLaunch& launch : launches) {
      launch_ = launch;
      for (const predict::TimedSpan& span : p.run.spans) add(span);
      for (const predict::TimedNotify& notify : p.run.notifies) add(notify);
    }
  }

  const Recorder& recorder() const { return recorder_; }

 private:
  struct SignalChannel {
    const char* signal = "";
    int rank = 0;
    std::int64_t channel = 0;
  };

  const predict::TimetableAgent& agent(int idx) const {
    return plan_.agents[static_cast<std::size_t>(idx)];
  }

  const char* role(const predict::TimetableAgent& a) {
    if (a.role < 0) return a.stage == predict::Stage::kStart ? "on_start" : "on_end";
    return recorder_.intern(program_.roles[static_cast<std::size_t>(a.role)].name);
  }

  // As the recorder's lanes of GPUs: a sole consumer has the worker's.
  const char* line(const predict::TimetableAgent& a) {
    if (a.role < 0) return "";
    const std::vector<Agent>& agents = program_.roles[static_cast<std::size_t>(a.role)].agents;
    const Agent& agent = agents[static_cast<std::size_t>(a.agent)];
    auto consumers = std::count_if(agents.begin(), agents.end(), [](const Agent& other) {
      return other.kind != AgentKind::kProducer;
    });
    bool sole = agent.kind != AgentKind::kProducer && consumers == 1;
    return sole ? "" : recorder_.intern(agent.name);
  }

  std::int64_t time_ns(double seconds) const {
    return launch_.begin_ns + std::llround(seconds * 1e9);
  }

  // Counters are numbered signal by signal, rank by rank, channel by channel.
  SignalChannel channel_of(int signal_idx, int counter) {
    std::int64_t within = counter;
    for (int s = 0; s < signal_idx; ++s) {
      within -= program_.signals[static_cast<std::size_t>(s)].num_channels * program_.world_size;
    }
    const Signal& signal = program_.signals[static_cast<std::size_t>(signal_idx)];
    return {recorder_.intern(signal.name), static_cast<int>(within / signal.num_channels),
            within % signal.num_channels};
  }

  void add(const predict::TimedSpan& span) {
    const predict::TimetableAgent& a = agent(span.agent);
    Span s{.rank = a.rank,
           .worker = a.worker,
           .program = name_,
           .role = role(a),
           .agent = line(a),
           .tile = span.tile,
           .epoch = launch_.epoch,
           .begin_ns = time_ns(span.begin),
           .end_ns = time_ns(span.end)};
    if (span.wait != nullptr) {
      s.kind = SpanKind::kWait;
      s.detail = "packet";
      if (span.wait->code == OpCode::kWait) {
        SignalChannel at = channel_of(span.wait->symbol, span.counter);
        s.detail = at.signal;
        s.channel = at.channel;
      }
    }
    recorder_.add(s);
  }

  void add(const predict::TimedNotify& notify) {
    const predict::TimetableAgent& a = agent(notify.agent);
    SignalChannel to = channel_of(notify.op->symbol, notify.counter);
    recorder_.add(NotifyMark{.from_rank = a.rank,
                             .to_rank = to.rank,
                             .worker = a.worker,
                             .program = name_,
                             .role = role(a),
                             .agent = line(a),
                             .signal = to.signal,
                             .channel = to.channel,
                             .epoch = launch_.epoch,
                             .time_ns = time_ns(notify.time)});
  }

  const predict::Timetable& plan_;
  const Program& program_;
  Recorder recorder_;
  const char* name_;
  TracedLaunch launch_;
};

// Of each launch, so that on_start begins with its first rank.
std::vector<TracedLaunch> launches_of(const Recorder& recorder, const predict::Timetable& plan) {
  std::map<std::int64_t, std::int64_t> begins;
  for (const Span& span : recorder.spans()) {
    if (span.kind == SpanKind::kLaunch) begins.try_emplace(span.epoch, span.begin_ns);
  }
  std::vector<TracedLaunch> launches;
  for (auto [epoch, begin_ns] : begins) {
    launches.push_back({epoch, begin_ns - std::llround(plan.launch * 1e9)});
  }
  return launches;
}

}  // namespace

void write_predicted_trace(const predict::Prediction& prediction,
                           const std::filesystem::path& path) {
  PredictedTrace(prediction, {TracedLaunch{}}).recorder().write_trace(path);
}

void write_both_traces(const Recorder& measured, const predict::Prediction& prediction,
                       const std::string& machine, const Recorder::Notes& notes,
                       const std::filesystem::path& path) {
  PredictedTrace predicted(prediction, launches_of(measured, prediction.timetable));
  Recorder::write_trace(
      path, {{&measured, ""}, {&predicted.recorder(), fmt::format("predicted, {},", machine)}},
      notes);
}

}  // namespace stretto
