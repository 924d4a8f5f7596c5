#include "stretto/runtime/recorder.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/runtime/recorder_state.h"
#include "stretto/runtime/trace_json.h"

namespace stretto {
namespace {

// +1 where an interval of tiles and copies (work) or of waits begins, -1 where it ends.
struct Edge {
  std::int64_t time_ns;
  int work, wait;
};

struct LaneTime {
  std::int64_t busy_ns = 0, wait_ns = 0;
};

LaneTime sweep(std::vector<Edge>& edges) {
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.time_ns < b.time_ns; });
  LaneTime time;
  int work = 0, wait = 0;
  std::int64_t last_ns = 0;
  for (const Edge& edge : edges) {
    if (wait > 0) {
      time.wait_ns += edge.time_ns - last_ns;
    } else if (work > 0) {
      time.busy_ns += edge.time_ns - last_ns;
    }
    work += edge.work;
    wait += edge.wait;
    last_ns = edge.time_ns;
  }
  return time;
}

}  // namespace

Recorder::Recorder(int num_ranks, std::size_t max_events) : state_(std::make_unique<State>()) {
  state_->ranks = std::vector<RankEvents>(static_cast<std::size_t>(num_ranks));
  state_->max_events = max_events;
}

Recorder::~Recorder() = default;

std::int64_t Recorder::now_ns() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

const char* Recorder::intern(const std::string& text) {
  std::lock_guard lock(state_->names_mutex);
  return state_->names.insert(text).first->c_str();
}

void Recorder::add(const Span& span) {
  STRETTO_CHECK(span.rank >= 0 && span.rank < static_cast<int>(state_->ranks.size()),
                "a span of a rank that the world does not have");
  RankEvents& events = state_->ranks[static_cast<std::size_t>(span.rank)];
  if (events.spans.size() + events.marks.size() < state_->max_events) {
    events.spans.push_back(span);
  } else {
    ++events.num_dropped;
  }
}

void Recorder::add(const NotifyMark& mark) {
  auto num_ranks = static_cast<int>(state_->ranks.size());
  STRETTO_CHECK(mark.from_rank >= 0 && mark.from_rank < num_ranks && mark.to_rank >= 0 &&
                    mark.to_rank < num_ranks,
                "a notify of a rank that the world does not have");
  RankEvents& events = state_->ranks[static_cast<std::size_t>(mark.from_rank)];
  if (events.spans.size() + events.marks.size() < state_->max_events) {
    events.marks.push_back(mark);
  } else {
    ++events.num_dropped;
  }
}

void Recorder::add_dropped(int rank, std::int64_t num_events) {
  state_->ranks.at(static_cast<std::size_t>(rank)).num_dropped += num_events;
}

void Recorder::clear() {
  for (RankEvents& events : state_->ranks) events = {};
}

std::int64_t Recorder::num_dropped() const {
  std::int64_t sum = 0;
  for (const RankEvents& events : state_->ranks) sum += events.num_dropped;
  return sum;
}

std::map<std::string, Recorder::RoleTime> Recorder::time_per_role() const {
  std::map<std::string, RoleTime> times;
  for (const RankEvents& events : state_->ranks) {
    std::map<std::pair<std::string_view, int>, std::vector<Edge>> lanes;
    for (const Span& span : events.spans) {
      if (span.kind == SpanKind::kLaunch) continue;
      int wait = span.kind == SpanKind::kWait ? 1 : 0;
      std::vector<Edge>& edges = lanes[{span.role, span.worker}];
      edges.push_back({span.begin_ns, 1 - wait, wait});
      edges.push_back({span.end_ns, wait - 1, -wait});
      if (span.kind == SpanKind::kTile) ++times[span.role].tiles;
    }
    for (auto& [lane, edges] : lanes) {
      LaneTime time = sweep(edges);
      RoleTime& role = times[std::string(lane.first)];
      role.busy_ns += time.busy_ns;
      role.wait_ns += time.wait_ns;
    }
  }
  return times;
}

std::vector<Span> Recorder::spans() const {
  std::vector<Span> all;
  for (const RankEvents& events : state_->ranks) {
    all.insert(all.end(), events.spans.begin(), events.spans.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  return all;
}

void Recorder::write_trace(const std::filesystem::path& path) const {
  write_trace(path, {{this, ""}});
}

void Recorder::write_trace(const std::filesystem::path& path, const std::vector<Group>& groups,
                           const Notes& notes) {
  std::vector<TraceGroup> all;
  for (const Group& g : groups) all.push_back({&g.recorder->state_->ranks, g.name});
  write_trace_json(all, notes, path);
}

}  // namespace stretto
