#include "stretto/runtime/rendezvous.h"

#include <fmt/format.h>

#include <functional>
#include <optional>

#include "stretto/base/host_phases.h"
#include "stretto/base/interrupts.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

std::size_t slot(std::uint64_t call) { return static_cast<std::size_t>(call % Seat::kSlots); }

CollectiveRequest request_of(const PostedRequest& posted) {
  return {.kind = static_cast<CollectiveKind>(posted.kind),
          .name = posted.name.get(),
          .dtype = posted.dtype,
          .count = posted.count,
          .error = posted.error.get()};
}

bool is_split(const PostedRequest& posted) {
  return posted.kind == static_cast<std::uint32_t>(CollectiveKind::kSplit);
}

// Groups may differ, as long as the members of one name the same (differing_groups).
bool same(const PostedRequest& a, const PostedRequest& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.name_hash == b.name_hash &&
         (a.count == b.count || is_split(a));
}

}  // namespace

std::string to_string_of_group(std::uint64_t bit_per_rank) {
  std::string text;
  for (int r = 0; r < kMaxRanks; ++r) {
    if ((bit_per_rank >> r & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
  }
  return "{" + text + "}";
}

std::string CollectiveRequest::to_string() const {
  switch (kind) {
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kBuffer:
      return fmt::format("allocate '{}' [{} x {}]", printable(name), stretto::name(dtype), count);
    case CollectiveKind::kSignals:
      return fmt::format("allocate signals '{}' [{}]", printable(name), count);
    case CollectiveKind::kSplit:
      return fmt::format("split {}", to_string_of_group(count));
    case CollectiveKind::kConfirm:
      return fmt::format("finish '{}'", printable(name));
    case CollectiveKind::kCall:
    case CollectiveKind::kRefusal:
      return printable(name);
  }
  return "";
}

Rendezvous::Outcome Rendezvous::meet(int rank, const CollectiveRequest& request,
                                     std::chrono::milliseconds timeout) {
  HostPhase phase("meeting of the hosts");
  if (control_.abort.load(std::memory_order_acquire) != 0) return {.status = Status::kAborted};
  Clock::time_point deadline = Clock::now() + timeout;
  if (Outcome slot = await_slot(rank, deadline); slot.status != Status::kDone) return slot;
  std::uint64_t call = num_calls(rank);
  post(rank, request);
  if (first_missing(call) < 0) {
    wake_others(rank);
    return verdict(call);
  }
  Outcome waited = await(rank, call, deadline);
  // A call that all came to counts even when the abort came too: all ranks must report the same.
  return first_missing(call) < 0 ? verdict(call) : waited;
}

Rendezvous::Outcome Rendezvous::refuse(int rank, const std::string& name, const std::string& error,
                                       std::chrono::milliseconds timeout) {
  if (control_.abort.load(std::memory_order_acquire) != 0) return {.status = Status::kAborted};
  if (Outcome slot = await_slot(rank, Clock::now() + timeout); slot.status != Status::kDone) {
    return slot;
  }
  post(rank, {.kind = CollectiveKind::kRefusal, .name = name, .error = error});
  wake_others(rank);
  return {};
}

Rendezvous::Outcome Rendezvous::await(int rank, std::uint64_t call, Clock::time_point deadline) {
  for (int polls = 0; first_missing(call) >= 0; ++polls) {
    if (Outcome none = aborted_wait(rank, call, deadline); none.status != Status::kDone)
      return none;
    Interrupts::look();
    control_.idle[static_cast<std::size_t>(rank)].pause(polls);
  }
  return {};
}

// Others may still read what is in it where this rank did not wait for them in earlier calls.
Rendezvous::Outcome Rendezvous::await_slot(int rank, Clock::time_point deadline) {
  std::uint64_t call = num_calls(rank);
  if (call < Seat::kSlots) return {};
  std::uint64_t oldest = call - Seat::kSlots;
  return first_missing(oldest + 1) < 0 ? Outcome{} : await(rank, oldest + 1, deadline);
}

Rendezvous::Outcome Rendezvous::aborted_wait(int rank, std::uint64_t call,
                                             Clock::time_point deadline) {
  std::uint64_t own_run = seat(rank).run.load(std::memory_order_relaxed);
  bool posted = num_calls(rank) == call + 1;  // not where an earlier call is waited for
  if (posted && first_refusal(call) >= 0) return verdict(call);
  if (control_.abort.load(std::memory_order_acquire) != 0) return {.status = Status::kAborted};
  if (int r = first_returned(call, own_run); r >= 0) {
    return {.status = Status::kReturned, .missing = r};
  }
  if (Clock::now() <= deadline) return {};
  int missing = first_missing(call);
  if (missing < 0) return {};
  return {.status = Status::kMissing, .missing = missing};
}

void Rendezvous::post(int rank, const CollectiveRequest& request) {
  Seat& own = seat(rank);
  std::uint64_t call = own.num_arrived.load(std::memory_order_relaxed);
  PostedRequest& posted = own.posted[slot(call)];
  posted.kind = static_cast<std::uint32_t>(request.kind);
  posted.dtype = request.dtype;
  posted.count = request.count;
  posted.name_hash = std::hash<std::string>()(request.name);
  posted.name.set(request.name);
  posted.error.set(request.error);
  own.num_arrived.store(call + 1, std::memory_order_seq_cst);
}

int Rendezvous::first_refusal(std::uint64_t call) {
  for (int r = 0; r < num_ranks_; ++r) {
    if (seat(r).num_arrived.load(std::memory_order_acquire) <= call) continue;
    const PostedRequest& posted = seat(r).posted[slot(call)];
    if (posted.kind == static_cast<std::uint32_t>(CollectiveKind::kRefusal)) return r;
  }
  return -1;
}

std::string Rendezvous::refusal(std::uint64_t call) {
  int r = first_refusal(call);
  if (r < 0) return "";
  return fmt::format("rank {} has refused the call in this place: {}", r,
                     printable(request_of(seat(r).posted[slot(call)]).error, 1000));
}

bool Rendezvous::differs_in_content_alone(std::uint64_t call) {
  const PostedRequest& first = seat(0).posted[slot(call)];
  for (int r = 0; r < num_ranks_; ++r) {
    if (seat(r).num_arrived.load(std::memory_order_acquire) <= call) return false;
    const PostedRequest& posted = seat(r).posted[slot(call)];
    if (posted.kind != first.kind || posted.dtype != first.dtype ||
        posted.name_hash != first.name_hash) {
      return false;
    }
  }
  return true;
}

// All ranks reach the same verdict, since all read the same requests; of a call that several have
// refused each may name another of them.
Rendezvous::Outcome Rendezvous::verdict(std::uint64_t call) {
  auto posted = [&](int r) -> const PostedRequest& { return seat(r).posted[slot(call)]; };
  auto refuse = [](std::string error) {
    return Outcome{.status = Status::kRefused, .error = std::move(error)};
  };
  if (std::string refused = refusal(call); !refused.empty()) return refuse(std::move(refused));
  for (int r = 1; r < num_ranks_; ++r) {
    if (same(posted(0), posted(r))) continue;
    return refuse(
        fmt::format("collective calls differ between ranks: rank 0 called {}, rank {} called {}",
                    request_of(posted(0)).to_string(), r, request_of(posted(r)).to_string()));
  }
  for (int r = 0; r < num_ranks_; ++r) {
    std::string error = posted(r).error.get();
    if (!error.empty()) return refuse(std::move(error));
  }
  if (!is_split(posted(0))) return {};
  for (int r = 0; r < num_ranks_; ++r) {
    for (int member = 0; member < num_ranks_; ++member) {
      if ((posted(r).count >> member & 1) == 0 || posted(member).count == posted(r).count) continue;
      return refuse(fmt::format(
          "groups differ between their members: rank {} called {}, rank {} "
          "called {}",
          r, request_of(posted(r)).to_string(), member, request_of(posted(member)).to_string()));
    }
  }
  return {};
}

int Rendezvous::first_missing(std::uint64_t call) {
  for (int r = 0; r < num_ranks_; ++r) {
    if (seat(r).num_arrived.load(std::memory_order_seq_cst) <= call) return r;
  }
  return -1;
}

// Outside of runs ranks are missed only when they have left for ever.
int Rendezvous::first_returned(std::uint64_t call, std::uint64_t own_run) {
  bool in_run = own_run % 2 == 1;
  for (int r = 0; r < num_ranks_; ++r) {
    std::uint64_t run = seat(r).run.load(std::memory_order_acquire);
    bool returned = run == Seat::kLeft || (in_run && run > own_run);
    if (returned && seat(r).num_arrived.load(std::memory_order_acquire) <= call) return r;
  }
  return -1;
}

void Rendezvous::begin_run(int rank) { seat(rank).run.fetch_add(1, std::memory_order_release); }

void Rendezvous::end_run(int rank) {
  seat(rank).run.fetch_add(1, std::memory_order_seq_cst);
  wake_others(rank);
}

void Rendezvous::leave(int rank) {
  seat(rank).run.store(Seat::kLeft, std::memory_order_seq_cst);
  wake_others(rank);
}

int Rendezvous::meet_to_recover(int rank, std::uint64_t step, std::chrono::milliseconds timeout,
                                const std::function<int()>& first_gone) {
  Clock::time_point deadline = Clock::now() + timeout;
  wake_others(rank);
  std::uint64_t seen = 0;  // a rank that has aborted did come
  for (int polls = 0;; ++polls) {
    int missing = -1, never_seen = -1;
    for (int r = num_ranks_ - 1; r >= 0; --r) {
      bool here = seat(r).num_recovers.load(std::memory_order_seq_cst) >= step;
      if (here) seen |= std::uint64_t{1} << r;
      if (!here) missing = r;
      if ((seen >> r & 1) == 0) never_seen = r;
    }
    if (missing >= 0 && never_seen >= 0) missing = never_seen;
    if (missing < 0 || Clock::now() > deadline) return missing;
    if (int gone = first_gone(); gone >= 0) return gone;
    control_.idle[static_cast<std::size_t>(rank)].pause(polls);
  }
}

void Rendezvous::wake_others(int rank) {
  for (int r = 0; r < num_ranks_; ++r) {
    if (r != rank) control_.idle[static_cast<std::size_t>(r)].wake();
  }
}

}  // namespace stretto
