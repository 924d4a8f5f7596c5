#include "stretto/runtime/rendezvous.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {

std::string CollectiveRequest::to_string() const {
  switch (kind) {
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kBuffer:
      return fmt::format("allocate '{}' [{} x {}]", printable(name), stretto::name(dtype), count);
    case CollectiveKind::kSignals:
      return fmt::format("allocate signals '{}' [{}]", printable(name), count);
  }
  return "";
}

Rendezvous::Outcome Rendezvous::meet(int rank, CollectiveRequest request,
                                     std::chrono::milliseconds timeout,
                                     const std::function<int()>& act) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (aborted_) return {.status = Status::kAborted};
  Seat& seat = ranks_[static_cast<std::size_t>(rank)];
  seat.arrived = true;
  seat.request = std::move(request);
  std::uint64_t call = num_completed_;
  if (++num_arrived_ == ranks_.size()) {
    complete(act);
    return outcome_;
  }
  auto settled = [&] {
    return num_completed_ != call || aborted_ || first_missing(/*only_left=*/true) >= 0;
  };
  bool in_time = changed_.wait_until(lock, deadline, settled);
  // A call that completed counts even when the abort came before this rank woke up: all ranks must
  // report the same.
  if (num_completed_ != call) return outcome_;
  if (aborted_) return {.status = Status::kAborted};
  return {.status = in_time ? Status::kReturned : Status::kMissing,
          .missing = first_missing(/*only_left=*/in_time)};
}

void Rendezvous::complete(const std::function<int()>& act) {
  outcome_ = {};
  const CollectiveRequest& first = ranks_.front().request;
  for (std::size_t r = 1; r < ranks_.size() && outcome_.error.empty(); ++r) {
    if (ranks_[r].request == first) continue;
    outcome_.error = fmt::format(
        "collective calls differ between ranks: rank 0 called {}, rank {} "
        "called {}",
        first.to_string(), r, ranks_[r].request.to_string());
  }
  if (outcome_.error.empty()) {
    try {
      outcome_.id = act();
    } catch (const std::exception& e) {
      outcome_.error = e.what();
    }
  }
  if (!outcome_.error.empty()) outcome_.status = Status::kRefused;
  for (Seat& seat : ranks_) seat.arrived = false;
  num_arrived_ = 0;
  ++num_completed_;
  changed_.notify_all();
}

int Rendezvous::first_missing(bool only_left) const {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].arrived && (ranks_[r].left || !only_left)) return static_cast<int>(r);
  }
  return -1;
}

void Rendezvous::begin_run() {
  std::lock_guard lock(mutex_);
  for (Seat& seat : ranks_) seat.left = false;
}

void Rendezvous::leave(int rank) {
  std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].left = true;
  if (num_arrived_ > 0) changed_.notify_all();
}

void Rendezvous::abort() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void Rendezvous::reset() {
  std::lock_guard lock(mutex_);
  aborted_ = false;
  num_arrived_ = 0;
  for (Seat& seat : ranks_) seat.arrived = false;
}

}  // namespace stretto
