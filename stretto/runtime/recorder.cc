#include "stretto/runtime/recorder.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>

#include "stretto/runtime/trace_json.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxEventsPerRank = std::size_t{1} << 20;

// Only the rank's own thread appends, so there is nothing to lock; readers come after World::run.
struct RankEvents {
  std::vector<Span> spans;
  std::vector<NotifyMark> marks;
  std::int64_t dropped = 0;
};

}  // namespace

struct Recorder::State {
  std::vector<RankEvents> ranks;
  std::mutex names_mutex;
  std::set<std::string> names;  // node-based: c_str() stays valid
};

Recorder::Recorder(int num_ranks) : state_(std::make_unique<State>()) {
  state_->ranks.resize(static_cast<std::size_t>(num_ranks));
}

Recorder::~Recorder() = default;

std::int64_t Recorder::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* Recorder::intern(const std::string& text) {
  std::lock_guard lock(state_->names_mutex);
  return state_->names.insert(text).first->c_str();
}

void Recorder::add(const Span& span) {
  RankEvents& events = state_->ranks[static_cast<std::size_t>(span.rank)];
  if (events.spans.size() < kMaxEventsPerRank) {
    events.spans.push_back(span);
  } else {
    ++events.dropped;
  }
}

void Recorder::add(const NotifyMark& mark) {
  RankEvents& events = state_->ranks[static_cast<std::size_t>(mark.from_rank)];
  if (events.marks.size() < kMaxEventsPerRank) {
    events.marks.push_back(mark);
  } else {
    ++events.dropped;
  }
}

void Recorder::clear() {
  for (RankEvents& events : state_->ranks) events = {};
}

std::map<std::string, Recorder::RoleTime> Recorder::time_per_role() const {
  std::map<std::string, RoleTime> roles;
  for (const RankEvents& events : state_->ranks) {
    for (const Span& span : events.spans) {
      RoleTime& time = roles[span.role];
      std::int64_t ns = span.end_ns - span.begin_ns;
      if (span.kind == SpanKind::kWait) time.wait_ns += ns;
      if (span.kind == SpanKind::kTile) {
        time.busy_ns += ns;
        ++time.tiles;
      }
    }
  }
  // A wait lies inside its tile's span.
  for (auto& [role, time] : roles)
    time.busy_ns = std::max<std::int64_t>(0, time.busy_ns - time.wait_ns);
  return roles;
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
  TraceContents contents{.spans = spans()};
  for (const RankEvents& events : state_->ranks) {
    contents.marks.insert(contents.marks.end(), events.marks.begin(), events.marks.end());
    contents.dropped += events.dropped;
  }
  write_trace_json(path, contents);
}

}  // namespace stretto
