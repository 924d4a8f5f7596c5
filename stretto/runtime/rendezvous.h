// Where the ranks of a world meet on the host: a collective call in which every rank states what it
// asks for, the last one to arrive checks that all asked for the same and acts once for all. Used
// by set-up (allocation, barriers), never inside a launch. World turns an outcome into an
// exception.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"

namespace stretto {

enum class CollectiveKind : std::uint8_t { kBarrier, kBuffer, kSignals };

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string name;
  DType dtype = DType::kU8;
  std::size_t count = 0;  // elements of a buffer, counters of a signal block

  bool operator==(const CollectiveRequest&) const = default;
  std::string to_string() const;  // "allocate 'full' [float32 x 4096]", on one clean line
};

class Rendezvous {
 public:
  enum class Status : std::uint8_t {
    kDone,      // all came and agreed: `id` is what `act` returned
    kRefused,   // all came; they disagreed or `act` refused: the same `error` on every rank
    kAborted,   // abort() was called while waiting
    kMissing,   // `missing` did not come within the timeout ...
    kReturned,  // ... or never will, because its body has returned
  };
  struct Outcome {
    Status status = Status::kDone;
    int id = -1;
    std::string error;
    int missing = -1;  // the lowest such rank
  };

  explicit Rendezvous(int num_ranks) : ranks_(static_cast<std::size_t>(num_ranks)) {}

  // Called by rank's own thread. `act` runs once per agreed call, on the last rank to arrive; an
  // Error out of it refuses the call on all ranks.
  Outcome meet(int rank, CollectiveRequest request, std::chrono::milliseconds timeout,
               const std::function<int()>& act);

  void begin_run();      // every rank may come again
  void leave(int rank);  // this rank comes no more in this run
  void abort();          // waiters return kAborted, and so does every later meet() until reset()
  void reset();          // forgets the abort and a half-finished call; no rank may be inside

 private:
  struct Seat {
    bool arrived = false;
    bool left = false;
    CollectiveRequest request;
  };

  void complete(const std::function<int()>& act);
  int first_missing(bool only_left) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> ranks_;
  std::size_t num_arrived_ = 0;
  std::uint64_t num_completed_ = 0;
  bool aborted_ = false;
  // Of the last completed call. The next cannot complete before every rank has read this one.
  Outcome outcome_;
};

}  // namespace stretto
