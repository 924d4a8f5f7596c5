// Where the ranks of a world meet on the host: a collective call in which every rank states what it
// asks for, and every rank sees whether all asked for the same. Used by set-up (allocation,
// barriers) and before calls that ranks may get out of step with, never inside a launch. World
// turns an outcome into an exception. Lies over the control block, so that ranks may be threads or
// processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "stretto/base/dtype.h"
#include "stretto/runtime/control_block.h"

namespace stretto {

enum class CollectiveKind : std::uint8_t {
  kBarrier,
  kBuffer,
  kSignals,
  kSplit,
  kConfirm,  // that the own part of an agreed call is done, or why it is not
  kCall,     // the next call of the layer above, by name and content
  kRefusal,  // the call of this place, of which the rank says why it does not make it
};

struct CollectiveRequest {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string name;
  DType dtype = DType::kU8;
  std::uint64_t count =
      0;  // elements of a buffer, counters of a signal block, bit per rank of split, hash of a call
  std::string error;  // refuses the call on every rank

  std::string to_string() const;  // "allocate 'full' [float32 x 4096]", on one clean line
};

class Rendezvous {
 public:
  enum class Status : std::uint8_t {
    kDone,  // all came and agreed
    // All came; they disagreed or one brought an error: the same `error` on every rank. Or a rank
    // has refused the call, which ends it for those that have come and for those that will.
    kRefused,
    kAborted,   // the world was aborted before all had come
    kMissing,   // `missing` did not come within the timeout ...
    kReturned,  // ... or never will, because its body has returned
  };
  struct Outcome {
    Status status = Status::kDone;
    std::string error;
    int missing = -1;  // the lowest such rank
  };

  Rendezvous(ControlBlock& control, int num_ranks) : control_(control), num_ranks_(num_ranks) {}

  // Called by rank's own thread. Throws what an interrupt throws (base/interrupts.h).
  Outcome meet(int rank, const CollectiveRequest& request, std::chrono::milliseconds timeout);
  // Comes to the next call to say only that this rank does not make it: `name`, for this `error`.
  // Does not wait, unless others have yet to come to calls that this rank has refused before.
  Outcome refuse(int rank, const std::string& name, const std::string& error,
                 std::chrono::milliseconds timeout);
  // Calls that the rank has come to.
  std::uint64_t num_calls(int rank) {
    return seat(rank).num_arrived.load(std::memory_order_relaxed);
  }
  // Who has refused this call, and why; "" where nobody has. For a rank that has come to none after
  // it.
  std::string refusal(std::uint64_t call);

  // Whether all came to this call by one name, and what they ask for besides is what differs. For a
  // rank that has come to none after it.
  bool differs_in_content_alone(std::uint64_t call);

  void begin_run(int rank);
  void end_run(int rank);  // comes no more in this run
  void leave(int rank);    // comes no more

  // One step of recovery, which meets although the world is aborted: the caller has added one to
  // num_recovers of each of its ranks, to `step`. The lowest rank that does not come, or the one
  // that first_gone() names meanwhile; -1: all have come.
  int meet_to_recover(int rank, std::uint64_t step, std::chrono::milliseconds timeout,
                      const std::function<int()>& first_gone);

 private:
  Seat& seat(int rank) { return control_.seats[static_cast<std::size_t>(rank)]; }
  using Clock = std::chrono::steady_clock;

  void post(int rank, const CollectiveRequest& request);
  Outcome verdict(std::uint64_t call);
  // Until all have come to `call`, then kDone.
  Outcome await(int rank, std::uint64_t call, Clock::time_point deadline);
  Outcome await_slot(int rank, Clock::time_point deadline);
  // Why this rank's wait for others to come to the call ends without them; kDone: it goes on.
  Outcome aborted_wait(int rank, std::uint64_t call, Clock::time_point deadline);
  int first_refusal(std::uint64_t call);
  int first_missing(std::uint64_t call);
  int first_returned(std::uint64_t call, std::uint64_t own_run);
  void wake_others(int rank);

  ControlBlock& control_;
  const int num_ranks_;
};

// "{0, 2}".
std::string to_string_of_group(std::uint64_t bit_per_rank);

}  // namespace stretto
