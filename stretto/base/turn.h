// The turn to make what a cache on disk is to keep, so that of the threads and processes of a
// machine that need the same at the same time one makes it and the others wait. Used by
// proof_cache.h, by nvrtc.h and by ops/choose.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace stretto {

// An flock of a file beside the entry, which the kernel releases however its holder ends, and which
// keeps threads apart as well as processes. Who has made the entry, or has something else to say,
// may write it into the file, and removes the file: those that wait have it open, and those that
// come later do not take what is old for what is of now.
class Turn {
 public:
  enum class Status : std::uint8_t {
    kTaken,        // by another
    kMine,         // nobody has been through since this was opened
    kOver,         // somebody has; read() says more
    kWithoutLocks  // neither can be told here, as in a folder that there is not
  };

  explicit Turn(std::filesystem::path path) : path_(std::move(path)) {}
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Does not wait.
  Status ask();
  // What the holder has written last, at first which process it is; short where it could not.
  std::string read() const;
  // By the holder; nothing by others.
  void write(std::string_view text);

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
  bool holds_ = false;
};

// Between one ask() and the next.
class TurnPauses {
 public:
  explicit TurnPauses(std::chrono::milliseconds longest)
      : deadline_(std::chrono::steady_clock::now() + longest) {}
  // False, and at once, when the longest wait has passed. Throws what an interrupt throws.
  bool wait();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::milliseconds next_{1};
};

// What find() finds of what another makes, once that has ended; nothing where it is to be made
// here: it is this one's turn, which ends with `turn`, or nobody can tell, or who had it has left
// nothing or is at it for longer than `longest`.
template <typename Find>
auto made_by_another(Turn& turn, std::chrono::milliseconds longest, const Find& find)
    -> decltype(find()) {
  TurnPauses pauses(longest);
  for (;;) {
    const Turn::Status status = turn.ask();
    // Now: who had the turn kept it before giving the turn away.
    if (auto found = find()) return found;
    if (status != Turn::Status::kTaken || !pauses.wait()) return {};
  }
}

}  // namespace stretto
