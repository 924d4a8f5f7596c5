// Timestamps per role and tile, off by default, written as Chrome/Perfetto JSON: one process per
// rank (pids from 1, since viewers keep pid 0 for the idle task), one lane "role/worker" per
// worker, flow arrows from a notify to the wait that it satisfied. Executors add, world.h owns.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stretto {

enum class SpanKind : std::uint8_t { kTile, kWait, kCopy, kLaunch };

struct Span {
  SpanKind kind = SpanKind::kTile;
  int rank = 0;
  int worker = 0;            // lane within the rank and role
  const char* program = "";  // static or interned (Recorder::intern)
  const char* role = "";
  const char* agent = "";   // where agents of a worker have lanes of their own
  const char* detail = "";  // kWait: signal name
  std::int64_t tile = -1;
  std::int64_t channel = -1;  // kWait
  std::int64_t epoch = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // Recorder::now_ns
};

// A notify. The latest one of the same (program, signal, to_rank, channel, epoch) before the end of
// a wait is drawn as the start of an arrow that ends there.
struct NotifyMark {
  int from_rank = 0, to_rank = 0, worker = 0;
  const char* program = "";
  const char* role = "";
  const char* agent = "";
  const char* signal = "";
  std::int64_t channel = 0;
  std::int64_t epoch = 0;
  std::int64_t time_ns = 0;
};

class Recorder {
 public:
  static constexpr std::size_t kDefaultMaxEvents = std::size_t{1} << 19;  // about 50 MB

  explicit Recorder(int num_ranks, std::size_t max_events = kDefaultMaxEvents);
  ~Recorder();

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void set_enabled(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  static std::int64_t now_ns();                 // monotone, the same clock on all ranks
  const char* intern(const std::string& text);  // thread-safe; lives as long as the recorder

  // Lock-free per rank: only that rank's thread appends. Beyond max_events per rank further events
  // are counted, not kept, and the file says how many were dropped.
  void add(const Span& span);
  void add(const NotifyMark& mark);
  void add_dropped(int rank, std::int64_t num_events);  // elsewhere, before they came here
  void clear();                                         // outside World::run; keeps interned names
  std::int64_t num_dropped() const;                     // outside World::run

  // Nanoseconds waited and busy, summed over the lanes of all ranks, per role name; call outside
  // World::run. Busy is the time in tiles and copies less the waits among it; overlapping spans of
  // one lane (agents of one worker) count once.
  struct RoleTime {
    std::int64_t busy_ns = 0, wait_ns = 0, tiles = 0;
  };
  std::map<std::string, RoleTime> time_per_role() const;
  // Spans of all ranks in order of begin; call outside World::run.
  std::vector<Span> spans() const;

  // Chrome trace JSON, times in microseconds since the first event. Written to a temporary file
  // beside `path` and renamed, so a full disk leaves nothing behind; UserError naming the path when
  // it cannot be written. Outside World::run.
  void write_trace(const std::filesystem::path& path) const;

  // Several recorders on one axis, the ranks of each as processes "NAME rank 0", ..., of an unnamed
  // one "rank 0", ...; `notes` are kept in the file's otherData.
  struct Group {
    const Recorder* recorder = nullptr;
    std::string name;
  };
  using Notes = std::map<std::string, std::string>;
  static void write_trace(const std::filesystem::path& path, const std::vector<Group>& groups,
                          const Notes& notes = {});

 private:
  struct State;
  std::atomic<bool> enabled_{false};
  std::unique_ptr<State> state_;
};

}  // namespace stretto
