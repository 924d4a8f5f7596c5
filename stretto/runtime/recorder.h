// Timestamps per role and tile, off by default, written as Chrome/Perfetto JSON: one process per
// rank, one lane per worker, flow arrows from a notify to the wait that it satisfied.
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
  const char* detail = "";  // kWait: signal name
  std::int64_t tile = -1;
  std::int64_t channel = -1;  // kWait
  std::int64_t epoch = 0;
  std::int64_t begin_ns = 0, end_ns = 0;  // Recorder::now_ns
};

// A notify, drawn as the start of a flow; the wait on the same (signal, rank, channel) that needed
// it is its end.
struct NotifyMark {
  int from_rank = 0, to_rank = 0, worker = 0;
  const char* program = "";
  const char* role = "";
  const char* signal = "";
  std::int64_t channel = 0;
  std::int64_t epoch = 0;
  std::int64_t time_ns = 0;
};

class Recorder {
 public:
  explicit Recorder(int num_ranks);
  ~Recorder();

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void set_enabled(bool on) { enabled_.store(on, std::memory_order_relaxed); }
  static std::int64_t now_ns();
  const char* intern(const std::string& text);

  // Lock-free per rank: only that rank's thread appends. Beyond max_events per rank further events
  // are counted, not kept, and the file says how many were dropped.
  void add(const Span& span);
  void add(const NotifyMark& mark);
  void clear();

  // Nanoseconds waited and busy, summed over ranks, per role name; call outside World::run.
  struct RoleTime {
    std::int64_t busy_ns = 0, wait_ns = 0, tiles = 0;
  };
  std::map<std::string, RoleTime> time_per_role() const;
  // Spans of all ranks in order of begin; call outside World::run.
  std::vector<Span> spans() const;

  // Chrome trace JSON. Written to a temporary file beside `path` and renamed, so a full disk leaves
  // nothing behind; UserError naming the path when it cannot be written.
  void write_trace(const std::filesystem::path& path) const;

 private:
  struct State;
  std::atomic<bool> enabled_{false};
  std::unique_ptr<State> state_;
};

}  // namespace stretto
