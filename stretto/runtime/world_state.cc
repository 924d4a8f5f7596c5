#include "stretto/runtime/world_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "stretto/base/printable.h"

namespace stretto {
namespace {

class CallGuard {
 public:
  CallGuard(std::atomic<bool>& in_call, int rank) : in_call_(in_call) {
    if (in_call_.exchange(true, std::memory_order_acquire)) {
      throw UserError(fmt::format("rank {} is in a collective call of another thread", rank));
    }
  }
  ~CallGuard() { in_call_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool>& in_call_;
};

// The rank that is the i-th of a group.
int rank_in(std::uint64_t group, int i) {
  for (int r = 0; r < kMaxRanks; ++r) {
    if ((group >> r & 1) != 0 && i-- == 0) return r;
  }
  return -1;
}

FaultRecord world_fault(std::string role, int rank, int waited_for, std::string reason) {
  return {.program = "world",
          .role = std::move(role),
          .rank = rank,
          .waited_for = waited_for,
          .reason = std::move(reason)};
}

}  // namespace

void World::State::require_usable() const {
  if (::getpid() != creator) {
    throw UserError(
        fmt::format("the world belongs to process {}: a child of fork() cannot use it", creator));
  }
  if (finalised.load(std::memory_order_acquire)) throw UserError("the world has been finalised");
}

// A slot is written while no fault has won, and by one process alone: what a winner wrote stays.
void World::State::record_fault(const FaultRecord& record) {
  auto slot = static_cast<std::uint32_t>(local.front());
  {
    std::lock_guard lock(mutex);
    if (aborted()) return;
    control->faults[slot].set(record);
    std::uint32_t none = 0;
    control->abort.compare_exchange_strong(none, slot + 1, std::memory_order_acq_rel);
  }
  for (int r = 0; r < options.size; ++r) control->idle[index(r)].wake();
}

void World::State::record_death(int rank, const std::string& what) {
  record_fault(
      world_fault("run", rank, rank, fmt::format("rank {} died: {}", rank, printable(what, 400))));
}

std::optional<FaultRecord> World::State::fault() const {
  std::uint32_t winner = control->abort.load(std::memory_order_acquire);
  if (winner == 0 || winner > control->faults.size()) return std::nullopt;
  return control->faults[winner - 1].get();
}

Fault World::State::winner() const {
  std::optional<FaultRecord> record = fault();
  STRETTO_CHECK(record.has_value(), "a rank reports a fault that nobody recorded");
  return Fault(*record);
}

void World::State::record_interrupt(int rank) {
  record_fault(world_fault("run", rank, rank, fmt::format("rank {} was interrupted", rank)));
}

void World::State::meet(int rank, const CollectiveRequest& request) {
  Rendezvous::Outcome outcome;
  try {
    outcome = rendezvous.meet(rank, request, options.timeout);
  } catch (...) {
    record_interrupt(rank);
    throw;
  }
  conclude(rank, request, outcome);
}

void World::State::conclude(int rank, const CollectiveRequest& request,
                            const Rendezvous::Outcome& outcome) {
  switch (outcome.status) {
    case Rendezvous::Status::kDone:
      return;
    case Rendezvous::Status::kRefused:
      throw Disagreement(outcome.error);
    case Rendezvous::Status::kAborted:
      break;
    case Rendezvous::Status::kMissing:
      record_fault(world_fault(request.to_string(), rank, outcome.missing,
                               fmt::format("deadline: rank {} did not come within {} ms",
                                           outcome.missing, options.timeout.count())));
      break;
    case Rendezvous::Status::kReturned:
      record_fault(
          world_fault(request.to_string(), rank, outcome.missing,
                      fmt::format("rank {} has returned without this call", outcome.missing)));
      break;
  }
  throw winner();
}

// The same on every rank: counted in calls that all agreed on.
std::uint64_t World::State::next_id(int rank) {
  return control->seats[index(rank)].num_ids.fetch_add(1, std::memory_order_relaxed);
}

// Does the own part of an agreed call and hears whether the others could do theirs.
void World::State::confirm(int rank, const std::string& name, const std::function<void()>& act) {
  CollectiveRequest request{.kind = CollectiveKind::kConfirm, .name = name};
  try {
    act();
  } catch (const Fault&) {
    throw;
  } catch (const std::exception& e) {
    request.error = printable(e.what(), 800);
  }
  meet(rank, request);
}

World::State::Block World::State::allocate(int rank, const CollectiveRequest& request,
                                           std::size_t each_bytes) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  meet(rank, request);
  std::uint64_t allocation_id = next_id(rank);
  Block block{.id = static_cast<int>(allocation_id)};
  Allocation allocation{.id = allocation_id,
                        .name = request.name,
                        .count = request.count,
                        .each_bytes = each_bytes,
                        .signals = request.kind == CollectiveKind::kSignals};
  try {
    confirm(rank, request.name, [&] { heap->create(rank, allocation); });
    confirm(rank, request.name, [&] {
      block.at = heap->attach(rank, allocation_id, deadline_in(options.timeout),
                              [this] { return aborted(); });
      auto missing = std::find(block.at.begin(), block.at.end(), nullptr);
      if (missing == block.at.end()) return;
      auto r = static_cast<int>(missing - block.at.begin());
      record_fault(world_fault(request.to_string(), rank, r,
                               fmt::format("deadline: the memory of rank {} did not come", r)));
      throw winner();
    });
  } catch (...) {
    heap->release(rank, allocation_id);
    throw;
  }
  return block;
}

void World::State::exchange(int rank, const CollectiveRequest& request,
                            const std::function<Fd()>& make,
                            const std::function<void(int, Fd)>& open) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  meet(rank, request);
  MemoryKey key{.world = id, .id = next_id(rank)};
  std::vector<Fd> memory(index(options.size));
  confirm(rank, request.name, [&] { memory[index(rank)] = make(); });
  confirm(rank, request.name, [&] {
    Deadline deadline = deadline_in(options.timeout);
    for (int r = 0; r < options.size; ++r) {
      if (r != rank) peers->send(members[index(r)], key, memory[index(rank)].get(), deadline);
    }
    // All are taken before one is opened, so that none is left where that fails.
    for (int r = 0; r < options.size; ++r) {
      if (r == rank) continue;
      memory[index(r)] =
          peers->receive(members[index(r)], key, deadline, [this] { return aborted(); });
      if (memory[index(r)]) continue;
      record_fault(world_fault(request.to_string(), rank, r,
                               fmt::format("deadline: the memory of rank {} did not come", r)));
      throw winner();
    }
    for (int r = 0; r < options.size; ++r) {
      if (r != rank) open(r, std::move(memory[index(r)]));
    }
  });
}

void World::State::come_together(int rank, const CollectiveRequest& request) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  meet(rank, request);
}

void World::State::refuse(int rank, const std::string& name, const std::string& reason) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  Rendezvous::Outcome outcome;
  try {
    outcome = rendezvous.refuse(rank, name, reason, options.timeout);
  } catch (...) {
    record_interrupt(rank);
    throw;
  }
  conclude(rank, {.kind = CollectiveKind::kRefusal, .name = name}, outcome);
}

std::shared_ptr<Rank> World::State::split(int rank, std::uint64_t group, const std::string& error) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  CollectiveRequest request{.kind = CollectiveKind::kSplit, .count = group, .error = error};
  meet(rank, request);
  std::uint64_t call = next_id(rank);
  std::shared_ptr<World> child;
  confirm(rank, "split", [&] {
    try {
      if (group != 0) child = make_child(call, group, rank);
    } catch (const Fault& fault) {
      // It counts the ranks of the group.
      int r = rank_in(group, fault.record().waited_for);
      throw Fault(world_fault(request.to_string(), rank, r,
                              fmt::format("rank {} ended or stalled in this call", r)));
    }
  });
  if (child == nullptr) return nullptr;
  int own = std::popcount(group & ((std::uint64_t{1} << rank) - 1));
  Rank* handle = &child->rank(own);
  return {std::move(child), handle};
}

void World::State::release(int rank, int allocation_id) {
  if (allocation_id < 0 || finalised.load(std::memory_order_acquire)) return;
  if (heap->release(rank, static_cast<std::uint64_t>(allocation_id))) return;
  throw UserError(
      fmt::format("symmetric allocation {}: rank {} has already released it", allocation_id, rank));
}

int World::State::first_gone() const { return peers ? peers->first_gone(members) : -1; }

void World::State::require_all_here() {
  int gone = first_gone();
  if (gone < 0) return;
  FaultRecord record = world_fault(
      "recover", local.front(), gone,
      fmt::format("rank {} is gone: a world that has lost a process stays faulted", gone));
  record_fault(record);
  peers->blame(members[index(gone)]);
  throw Fault(record);
}

void World::State::recover_step(const char* what) {
  std::uint64_t step = 0;
  for (int r : local) {
    step = control->seats[index(r)].num_recovers.fetch_add(1, std::memory_order_seq_cst) + 1;
  }
  int missing = rendezvous.meet_to_recover(local.front(), step, options.timeout,
                                           [this] { return first_gone(); });
  if (missing < 0) return;
  require_all_here();
  if (peers) peers->blame(members[index(missing)]);
  throw Fault(world_fault("recover", local.front(), missing,
                          fmt::format("deadline: rank {} did not come {} within {} ms", missing,
                                      what, options.timeout.count())));
}

void World::State::recover() {
  require_usable();
  if (running.load()) throw UserError("World::recover: the world is running");
  require_all_here();
  auto own = [&](int r) -> Seat& { return control->seats[index(r)]; };
  std::uint64_t before = own(local.front()).num_recovers.load();
  try {
    recover_step("to recover");
    heap->zero_signals();
    std::uint64_t ids = 0;
    for (int r = 0; r < options.size; ++r) ids = std::max(ids, own(r).num_ids.load());
    for (int r : local) {
      own(r).num_arrived.store(0, std::memory_order_release);
      own(r).num_ids.store(ids, std::memory_order_release);
    }
    if (peers) peers->discard(id, ids);
    // Called without the lock, since a callback may register or remove another.
    std::map<int, std::function<void()>> called;
    {
      std::lock_guard lock(mutex);
      called = restarts;
    }
    for (const auto& [token, restart] : called) restart();
    recover_step("to restart");
    // By one rank alone, so that no later fault is cleared by a rank that comes last.
    if (local.front() == 0) control->abort.store(0, std::memory_order_release);
    recover_step("to go on");
  } catch (...) {
    for (int r : local) own(r).num_recovers.store(before, std::memory_order_release);
    throw;
  }
  require_all_here();  // a death that was recorded before the fault was cleared
}

void World::State::fail_in_children(int rank, const std::string& what) {
  std::vector<Child> all;
  {
    std::lock_guard lock(mutex);
    all = children;
  }
  std::uint64_t bit = std::uint64_t{1} << rank;
  for (const Child& child : all) {
    std::shared_ptr<World> world = child.world.lock();
    if (world == nullptr || (child.group & bit) == 0) continue;
    int own = std::popcount(child.group & (bit - 1));
    world->state_->record_fault(
        world_fault("run", own, own, fmt::format("rank {} died: {}", own, printable(what, 400))));
  }
}

void World::State::finalise() {
  if (::getpid() != creator || finalised.exchange(true)) return;
  if (peers && death_token_ >= 0) peers->unwatch(death_token_);
  for (int r : local) rendezvous.leave(r);
  heap->clear();
  heap.reset();
  peers.reset();
}

}  // namespace stretto
