#include "apps/predicted_trace.h"

#include <cmath>

#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

class PredictedTrace {
 public:
  explicit PredictedTrace(const predict::Prediction& p)
      : plan_(p.plan),
        program_(*p.plan.program),
        recorder_(program_.world_size, p.run.spans.size() + p.run.notifies.size() + 1),
        name_(recorder_.intern(program_.name)) {
    for (const predict::TimedSpan& span : p.run.spans) add(span);
    for (const predict::TimedNotify& notify : p.run.notifies) add(notify);
  }

  void write(const std::filesystem::path& path) const { recorder_.write_trace(path); }

 private:
  struct Place {
    const char* signal = "";
    int rank = 0;
    std::int64_t channel = 0;
  };

  const predict::PlannedAgent& agent(int idx) const {
    return plan_.agents[static_cast<std::size_t>(idx)];
  }

  const char* role(const predict::PlannedAgent& a) {
    if (a.role < 0) return "";
    return recorder_.intern(program_.roles[static_cast<std::size_t>(a.role)].name);
  }

  // Counters are numbered signal by signal, rank by rank, channel by channel.
  Place place(int signal_idx, int counter) {
    std::int64_t within = counter;
    for (int s = 0; s < signal_idx; ++s) {
      within -= program_.signals[static_cast<std::size_t>(s)].num_channels * program_.world_size;
    }
    const Signal& signal = program_.signals[static_cast<std::size_t>(signal_idx)];
    return {recorder_.intern(signal.name), static_cast<int>(within / signal.num_channels),
            within % signal.num_channels};
  }

  void add(const predict::TimedSpan& span) {
    const predict::PlannedAgent& a = agent(span.agent);
    Span s{.rank = a.rank,
           .worker = a.worker,
           .program = name_,
           .role = role(a),
           .tile = span.tile,
           .begin_ns = nanoseconds(span.begin),
           .end_ns = nanoseconds(span.end)};
    if (span.wait != nullptr) {
      s.kind = SpanKind::kWait;
      s.detail = "packet";
      if (span.wait->code == OpCode::kWait) {
        Place at = place(span.wait->symbol, span.counter);
        s.detail = at.signal;
        s.channel = at.channel;
      }
    }
    recorder_.add(s);
  }

  void add(const predict::TimedNotify& notify) {
    const predict::PlannedAgent& a = agent(notify.agent);
    Place to = place(notify.op->symbol, notify.counter);
    recorder_.add(NotifyMark{.from_rank = a.rank,
                             .to_rank = to.rank,
                             .worker = a.worker,
                             .program = name_,
                             .role = role(a),
                             .signal = to.signal,
                             .channel = to.channel,
                             .time_ns = nanoseconds(notify.time)});
  }

  const predict::Plan& plan_;
  const Program& program_;
  Recorder recorder_;
  const char* name_;
};

}  // namespace

void write_predicted_trace(const predict::Prediction& prediction,
                           const std::filesystem::path& path) {
  PredictedTrace(prediction).write(path);
}

}  // namespace stretto
