#include "stretto/runtime/trace_json.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

std::string escaped(const char* text) {
  std::string out;
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c == '"' || *c == '\\') {
      out += fmt::format("\\{}", *c);
    } else if (static_cast<unsigned char>(*c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(*c)));
    } else {
      out += *c;
    }
  }
  return out;
}

// A file that appears under its name only when all of it was written.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path)
      : path_(path), temporary_(path.string() + fmt::format(".{}.tmp", ::getpid())) {
    file_ = std::fopen(temporary_.c_str(), "wb");
    if (file_ == nullptr) fail();
  }
  ~AtomicFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!done_) std::remove(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail();
  }

  void commit() {
    std::FILE* file = file_;
    file_ = nullptr;
    bool flushed = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
    int error = errno;
    std::fclose(file);
    errno = error;
    if (!flushed || std::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
    done_ = true;
  }

 private:
  [[noreturn]] void fail() const {
    throw UserError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
  }

  std::filesystem::path path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
  bool done_ = false;
};

using Lane = std::tuple<int, std::string, int>;  // rank, role, worker

class TraceWriter {
 public:
  TraceWriter(AtomicFile& file, const TraceContents& contents) : file_(file), contents_(contents) {
    for (const Span& s : contents_.spans) {
      if (origin_ < 0 || s.begin_ns < origin_) origin_ = s.begin_ns;
      lanes_.emplace(Lane{s.rank, s.role, s.worker}, 0);
    }
    for (const NotifyMark& m : contents_.marks) {
      if (origin_ < 0 || m.time_ns < origin_) origin_ = m.time_ns;
      lanes_.emplace(Lane{m.from_rank, m.role, m.worker}, 0);
    }
    int next = 1;
    for (auto& [lane, id] : lanes_) id = next++;
  }

  void write() {
    file_.write("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped_events\":" +
                std::to_string(contents_.dropped) + "},\"traceEvents\":[\n");
    for (const auto& [lane, id] : lanes_) name_lane(lane, id);
    for (const Span& span : contents_.spans) write_span(span);
    write_flows();
    file_.write("\n]}\n");
  }

 private:
  void event(const std::string& text) {
    file_.write(first_ ? text : ",\n" + text);
    first_ = false;
  }

  double us(std::int64_t ns) const { return static_cast<double>(ns - origin_) / 1e3; }

  void name_lane(const Lane& lane, int id) {
    const auto& [rank, role, worker] = lane;
    if (rank != named_rank_) {
      named_rank_ = rank;
      event(fmt::format(
          R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":"rank {}"}}}})",
          rank, rank));
    }
    event(fmt::format(
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}/{}"}}}})", rank,
        id, escaped(role.c_str()), worker));
  }

  void write_span(const Span& s) {
    int tid = lanes_.at(Lane{s.rank, s.role, s.worker});
    std::string name;
    switch (s.kind) {
      case SpanKind::kTile:
        name = fmt::format("tile {}", s.tile);
        break;
      case SpanKind::kWait:
        name = fmt::format("wait {}[{}]", escaped(s.detail), s.channel);
        break;
      case SpanKind::kCopy:
        name = "copy";
        break;
      case SpanKind::kLaunch:
        name = escaped(s.program);
        break;
    }
    event(fmt::format(
        R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"tile":{},"launch":{}}}}})",
        name, escaped(s.program), s.rank, tid, us(s.begin_ns),
        static_cast<double>(s.end_ns - s.begin_ns) / 1e3, s.tile, s.epoch));
  }

  // The wait's arrow starts at the last notify of its counter before the wait ended.
  void write_flows() {
    using Key = std::tuple<std::string, std::string, int, std::int64_t, std::int64_t>;
    std::map<Key, std::vector<const NotifyMark*>> marks;
    for (const NotifyMark& m : contents_.marks) {
      marks[{m.program, m.signal, m.to_rank, m.channel, m.epoch}].push_back(&m);
    }
    std::int64_t flow = 0;
    for (const Span& s : contents_.spans) {
      if (s.kind != SpanKind::kWait) continue;
      auto found = marks.find({s.program, s.detail, s.rank, s.channel, s.epoch});
      if (found == marks.end()) continue;
      const NotifyMark* last = nullptr;
      for (const NotifyMark* m : found->second) {
        if (m->time_ns <= s.end_ns && (last == nullptr || m->time_ns > last->time_ns)) last = m;
      }
      if (last != nullptr) write_flow(++flow, *last, s);
    }
  }

  void write_flow(std::int64_t id, const NotifyMark& m, const Span& s) {
    event(fmt::format(
        R"({{"ph":"s","name":"{}","cat":"signal","id":{},"pid":{},"tid":{},"ts":{:.3f}}})",
        escaped(m.signal), id, m.from_rank, lanes_.at(Lane{m.from_rank, m.role, m.worker}),
        us(m.time_ns)));
    event(fmt::format(
        R"({{"ph":"f","bp":"e","name":"{}","cat":"signal","id":{},"pid":{},"tid":{},"ts":{:.3f}}})",
        escaped(m.signal), id, s.rank, lanes_.at(Lane{s.rank, s.role, s.worker}), us(s.end_ns)));
  }

  AtomicFile& file_;
  const TraceContents& contents_;
  std::map<Lane, int> lanes_;
  std::int64_t origin_ = -1;
  int named_rank_ = -1;
  bool first_ = true;
};

}  // namespace

void write_trace_json(const std::filesystem::path& path, const TraceContents& contents) {
  AtomicFile file(path);
  TraceWriter(file, contents).write();
  file.commit();
}

}  // namespace stretto
