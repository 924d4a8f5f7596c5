#include "stretto/runtime/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "stretto/base/json.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

// A slice of a lane: a span, or a notify as the shortest visible slice, since an arrow must start
// in a slice.
struct Slice {
  const Span* span = nullptr;
  const NotifyMark* mark = nullptr;
  int tid = 0;

  std::int64_t begin_ns() const { return span != nullptr ? span->begin_ns : mark->time_ns; }
  std::int64_t end_ns() const { return span != nullptr ? span->end_ns : mark->time_ns + 1; }
};

struct Lane {
  std::string name;
  int tid = 0;
};

struct RankLayout {
  std::vector<Lane> lanes;
  std::vector<Slice> slices;  // by lane, then by begin, an enclosing slice before what it encloses
};

// Slices of one lane must nest. Agents of one worker, which interleave, may overlap in part: each
// slice goes to the first row in which it nests.
class Rows {
 public:
  std::size_t place(std::int64_t begin_ns, std::int64_t end_ns) {
    for (std::size_t row = 0;; ++row) {
      if (row == open_ends_.size()) open_ends_.emplace_back();
      std::vector<std::int64_t>& open = open_ends_[row];
      while (!open.empty() && open.back() <= begin_ns) open.pop_back();
      if (!open.empty() && open.back() < end_ns) continue;
      open.push_back(end_ns);
      return row;
    }
  }
  std::size_t size() const { return open_ends_.size(); }

 private:
  std::vector<std::vector<std::int64_t>> open_ends_;  // [row], innermost last
};

using LaneKey = std::tuple<std::string_view, int, std::string_view>;  // role, worker, agent

void lay_out_lane(const LaneKey& key, std::vector<Slice>& slices, int& next_tid,
                  RankLayout& layout) {
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::pair(a.begin_ns(), -a.end_ns()) < std::pair(b.begin_ns(), -b.end_ns());
  });
  Rows rows;
  for (Slice& slice : slices) {
    slice.tid = next_tid + static_cast<int>(rows.place(slice.begin_ns(), slice.end_ns()));
  }
  for (std::size_t row = 0; row < rows.size(); ++row) {
    auto [role, worker, agent] = key;
    std::string name = role.empty() ? "launch" : fmt::format("{}/{}", role, worker);
    if (!agent.empty()) name += fmt::format(" {}", agent);
    if (row > 0) name += fmt::format(" ({})", row + 1);
    layout.lanes.push_back({std::move(name), next_tid++});
  }
  layout.slices.insert(layout.slices.end(), slices.begin(), slices.end());
}

RankLayout lay_out(const RankEvents& events, int& next_tid) {
  std::map<LaneKey, std::vector<Slice>> lanes;
  for (const Span& span : events.spans) {
    lanes[{span.role, span.worker, span.agent}].push_back({.span = &span});
  }
  for (const NotifyMark& mark : events.marks) {
    lanes[{mark.role, mark.worker, mark.agent}].push_back({.mark = &mark});
  }
  RankLayout layout;
  for (auto& [key, slices] : lanes) lay_out_lane(key, slices, next_tid, layout);
  return layout;
}

struct FlowKey {
  const char* program;
  const char* signal;
  int to_rank;
  std::int64_t channel, epoch;
};

std::strong_ordering compare(const FlowKey& a, const FlowKey& b) {
  if (auto c = a.to_rank <=> b.to_rank; c != 0) return c;
  if (auto c = a.channel <=> b.channel; c != 0) return c;
  if (auto c = a.epoch <=> b.epoch; c != 0) return c;
  if (a.signal != b.signal) {
    if (auto c = std::strcmp(a.signal, b.signal) <=> 0; c != 0) return c;
  }
  return a.program == b.program ? std::strong_ordering::equal
                                : std::strcmp(a.program, b.program) <=> 0;
}

FlowKey key_of(const NotifyMark& m) { return {m.program, m.signal, m.to_rank, m.channel, m.epoch}; }

FlowKey key_of(const Span& wait) {
  return {wait.program, wait.detail, wait.rank, wait.channel, wait.epoch};
}

// All notifies by key, then time.
class NotifyIndex {
 public:
  explicit NotifyIndex(const std::vector<RankLayout>& layouts) {
    for (const RankLayout& layout : layouts) {
      for (const Slice& slice : layout.slices) {
        if (slice.mark != nullptr) notifies_.push_back(slice);
      }
    }
    std::sort(notifies_.begin(), notifies_.end(), [](const Slice& a, const Slice& b) {
      auto c = compare(key_of(*a.mark), key_of(*b.mark));
      return c != 0 ? c < 0 : a.mark->time_ns < b.mark->time_ns;
    });
  }

  // The latest notify that can have ended this wait, or null.
  const Slice* cause_of(const Span& wait) const {
    FlowKey key = key_of(wait);
    auto after = std::upper_bound(notifies_.begin(), notifies_.end(), key,
                                  [&](const FlowKey& k, const Slice& notify) {
                                    auto c = compare(k, key_of(*notify.mark));
                                    return c != 0 ? c < 0 : wait.end_ns < notify.mark->time_ns;
                                  });
    if (after == notifies_.begin()) return nullptr;
    const Slice& found = *std::prev(after);
    return compare(key_of(*found.mark), key) == 0 ? &found : nullptr;
  }

 private:
  std::vector<Slice> notifies_;
};

const char* category(SpanKind kind) {
  switch (kind) {
    case SpanKind::kTile:
      return "tile";
    case SpanKind::kWait:
      return "wait";
    case SpanKind::kCopy:
      return "copy";
    case SpanKind::kLaunch:
      return "launch";
  }
  return "";
}

class TraceWriter {
 public:
  TraceWriter(const std::filesystem::path& path, std::int64_t origin_ns)
      : file_(path), origin_ns_(origin_ns) {
    buffer_ = "{\"traceEvents\":[";
  }

  // Everything after this is of ranks whose processes are numbered from `first_pid`.
  void begin_group(const std::string& name, int first_pid) {
    process_ = name.empty() ? "rank" : escape(name) + " rank";
    first_pid_ = first_pid;
  }

  void metadata(int rank, const RankLayout& layout) {
    begin_event();
    append("{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"{} {}\"}}}}",
           pid_of(rank), process_, rank);
    begin_event();
    append(
        "{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_sort_index\",\"args\":"
        "{{\"sort_index\":{}}}}}",
        pid_of(rank), rank);
    for (const Lane& lane : layout.lanes) {
      begin_event();
      append(
          "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":"
          "{{\"name\":\"{}\"}}}}",
          pid_of(rank), lane.tid, escape(lane.name));
      begin_event();
      append(
          "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\",\"args\":"
          "{{\"sort_index\":{}}}}}",
          pid_of(rank), lane.tid, lane.tid);
    }
  }

  void slice(const Slice& s) {
    if (s.span != nullptr) {
      span(*s.span, s.tid);
    } else {
      notify(*s.mark, s.tid);
    }
  }

  void arrow(const Slice& notify, const Slice& wait) {
    ++num_arrows_;
    // Within the wait, whose end is exclusive, and not before the notify.
    std::int64_t end_ns = std::max({wait.span->end_ns - 1, wait.begin_ns(), notify.mark->time_ns});
    for (bool start : {true, false}) {
      const Slice& at = start ? notify : wait;
      begin_event();
      append(
          "{{\"ph\":\"{}\",{}\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{},\"cat\":\"flow\","
          "\"name\":\"{}[{}]\"}}",
          start ? "s" : "f", start ? "" : "\"bp\":\"e\",", num_arrows_,
          pid_of(start ? notify.mark->from_rank : wait.span->rank), at.tid,
          time(start ? notify.mark->time_ns : end_ns), name(notify.mark->signal),
          notify.mark->channel);
    }
  }

  void finish(const std::vector<TraceGroup>& groups,
              const std::map<std::string, std::string>& notes) {
    append("\n],\"displayTimeUnit\":\"ns\",\"otherData\":{{\"dropped_events\":[");
    const char* separator = "";
    for (const TraceGroup& group : groups) {
      for (const RankEvents& events : *group.ranks) {
        append("{}{}", std::exchange(separator, ","), events.num_dropped);
      }
    }
    append("]");
    for (const auto& [key, text] : notes) append(",\"{}\":\"{}\"", escape(key), escape(text));
    append("}}}}\n");
    file_.write(buffer_);
    file_.commit();
  }

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{1} << 18;

  template <typename... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    buffer_ += fmt::format(format, std::forward<Args>(args)...);
  }

  void begin_event() {
    if (buffer_.size() > kFlushBytes) {
      file_.write(buffer_);
      buffer_.clear();
    }
    buffer_ += std::exchange(first_, false) ? "\n" : ",\n";
  }

  static std::string escape(const std::string& raw) {
    std::string quoted = Json(raw).dump(-1, ' ', true, Json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
  }

  int pid_of(int rank) const { return first_pid_ + rank; }

  // Names are interned, so that their address identifies them.
  const std::string& name(const char* raw) {
    auto [entry, added] = escaped_.try_emplace(raw);
    if (added) entry->second = escape(raw);
    return entry->second;
  }

  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  }
  std::string time(std::int64_t ns) const { return microseconds(ns - origin_ns_); }

  void span(const Span& s, int tid) {
    begin_event();
    append("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"cat\":\"{}\",\"name\":\"",
           pid_of(s.rank), tid, time(s.begin_ns),
           microseconds(std::max<std::int64_t>(s.end_ns - s.begin_ns, 0)), category(s.kind));
    if (s.kind == SpanKind::kLaunch) {
      append("{} #{}", name(s.program), s.epoch);
    } else if (s.kind == SpanKind::kWait) {
      append("wait {}", name(s.detail));
      if (s.channel >= 0) append("[{}]", s.channel);
    } else {
      append("{} {}", category(s.kind), s.tile);
    }
    append("\",\"args\":{{\"program\":\"{}\",\"epoch\":{}", name(s.program), s.epoch);
    if (s.tile >= 0) append(",\"tile\":{}", s.tile);
    append("}}}}");
  }

  void notify(const NotifyMark& m, int tid) {
    begin_event();
    append(
        "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":0.001,\"cat\":\"notify\","
        "\"name\":\"notify {}[{}] on rank {}\",\"args\":{{\"program\":\"{}\",\"epoch\":{}}}}}",
        pid_of(m.from_rank), tid, time(m.time_ns), name(m.signal), m.channel, m.to_rank,
        name(m.program), m.epoch);
  }

  AtomicFile file_;
  std::int64_t origin_ns_;
  std::string buffer_;
  bool first_ = true;
  std::int64_t num_arrows_ = 0;
  std::string process_;
  int first_pid_ = 1;
  std::unordered_map<const char*, std::string> escaped_;
};

std::int64_t first_event_ns(const std::vector<TraceGroup>& groups) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const TraceGroup& group : groups) {
    for (const RankEvents& events : *group.ranks) {
      for (const Span& span : events.spans) first = std::min(first, span.begin_ns);
      for (const NotifyMark& mark : events.marks) first = std::min(first, mark.time_ns);
    }
  }
  return first;
}

void write_group(TraceWriter& writer, const std::vector<RankEvents>& ranks, int& next_tid) {
  std::vector<RankLayout> layouts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    layouts.push_back(lay_out(ranks[r], next_tid));
    writer.metadata(static_cast<int>(r), layouts.back());
  }
  for (const RankLayout& layout : layouts) {
    for (const Slice& slice : layout.slices) writer.slice(slice);
  }
  // After all slices: a viewer binds an arrow to the slice that it has seen at that time.
  NotifyIndex notifies(layouts);
  for (const RankLayout& layout : layouts) {
    for (const Slice& slice : layout.slices) {
      if (slice.span == nullptr || slice.span->kind != SpanKind::kWait) continue;
      if (const Slice* cause = notifies.cause_of(*slice.span)) writer.arrow(*cause, slice);
    }
  }
}

}  // namespace

void write_trace_json(const std::vector<TraceGroup>& groups,
                      const std::map<std::string, std::string>& notes,
                      const std::filesystem::path& path) {
  TraceWriter writer(path, first_event_ns(groups));
  int next_pid = 1;     // viewers treat process 0 as the idle task
  int next_tid = 1000;  // no two ranks share one, and none equals a pid, which viewers would merge
  for (const TraceGroup& group : groups) {
    writer.begin_group(group.name, next_pid);
    write_group(writer, *group.ranks, next_tid);
    next_pid += static_cast<int>(group.ranks->size());
  }
  writer.finish(groups, notes);
}

}  // namespace stretto
