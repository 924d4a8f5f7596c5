#include "stretto/runtime/world_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <thread>

#include "stretto/base/printable.h"
#include "stretto/runtime/processes/bootstrap.h"
#include "stretto/runtime/processes/mesh.h"

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

constexpr std::uint64_t kControlId = ~std::uint64_t{0};  // of the control block's memory

const WorldOptions& checked(const WorldOptions& options) {
  if (options.size < 1 || options.size > kMaxRanks) {
    throw UserError(fmt::format("world size {}: need 1 to {} ranks", options.size, kMaxRanks));
  }
  if (options.timeout < std::chrono::milliseconds(1)) {
    throw UserError(fmt::format("world timeout {} ms: need at least 1", options.timeout.count()));
  }
  return options;
}

WorldOptions world_options(const ProcessWorldOptions& o) {
  WorldOptions options =
      checked({.size = o.bootstrap.size, .timeout = o.timeout, .record = o.record});
  if (o.bootstrap.rank < 0 || o.bootstrap.rank >= options.size) {
    throw UserError(
        fmt::format("rank {}: a world of {} has none such", o.bootstrap.rank, options.size));
  }
  bool needs_port = options.size > 1;
  if (needs_port && (o.bootstrap.port < 1 || o.bootstrap.port > 65535)) {
    throw UserError(fmt::format("port {}: need 1 to 65535", o.bootstrap.port));
  }
  return options;
}

void set_up_waiting(ControlBlock& control, int size, bool shared) {
  auto cores = static_cast<int>(std::thread::hardware_concurrency());
  for (IdleRank& rank : control.idle) {
    rank.set_crowded(size > cores);
    rank.set_shared(shared);
  }
}

// The lowest rank makes the block, the others map it.
Control share_control(const WorldOptions& options, int rank, Peers& peers,
                      const std::vector<int>& members, std::uint64_t id) {
  Deadline deadline = deadline_in(options.timeout);
  MemoryKey key{.world = id, .id = kControlId};
  auto lost = [&](int other) {
    int gone = peers.first_gone(members);
    peers.blame(members[WorldState::index(gone < 0 ? other : gone)]);
    if (gone < 0) {
      return bootstrap_fault(rank, other, fmt::format("deadline: rank {} did not go on", other));
    }
    return bootstrap_fault(rank, gone,
                           fmt::format("rank {} ended while the world was being made", gone));
  };
  if (rank == 0) {
    SharedMemory memory = Control::make();
    set_up_waiting(*reinterpret_cast<ControlBlock*>(memory.data()), options.size, true);
    for (int r = 1; r < options.size; ++r) {
      if (!peers.send(members[WorldState::index(r)], key, memory.fd(), deadline)) throw lost(r);
    }
    return Control(std::move(memory));
  }
  auto aborts = [&] { return peers.first_gone(members) >= 0; };
  Fd fd = peers.receive(members[0], key, deadline, aborts);
  if (!fd) throw lost(0);
  return Control(SharedMemory::open(std::move(fd), Control::kBytes));
}

// Different for every world that lives among the same peers.
std::uint64_t child_id(std::uint64_t parent, std::uint64_t call, std::uint64_t group) {
  std::uint64_t h = parent;
  for (std::uint64_t part : {call + 1, group}) {
    h = (h ^ part) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h;
}

std::vector<int> ranks_of(std::uint64_t group) {
  std::vector<int> ranks;
  for (int r = 0; r < kMaxRanks; ++r) {
    if ((group >> r & 1) != 0) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace

WorldState::WorldState(const WorldOptions& o)
    : options(checked(o)),
      local(index(o.size)),
      rendezvous(*control, o.size),
      heap(make_private_heap(o.size)),
      recorder(o.size),
      creator(::getpid()),
      in_call(index(o.size)) {
  std::iota(local.begin(), local.end(), 0);
  set_up_waiting(*control, o.size, false);
  recorder.set_enabled(o.record);
}

WorldState::WorldState(const WorldOptions& o, int rank, std::shared_ptr<Peers> p,
                       std::vector<int> peer_ranks, std::uint64_t world_id)
    : options(o),
      local{rank},
      peers(std::move(p)),
      members(std::move(peer_ranks)),
      id(world_id),
      control(share_control(o, rank, *peers, members, world_id)),
      rendezvous(*control, o.size),
      heap(make_shared_heap(peers, world_id, members)),
      recorder(o.size),
      creator(::getpid()),
      in_call(index(o.size)) {
  recorder.set_enabled(o.record);
  watch_peers();
}

WorldState::~WorldState() { finalise(); }

void WorldState::watch_peers() {
  death_token_ = peers->watch([this](int peer, int pid) {
    auto member = std::find(members.begin(), members.end(), peer);
    if (member == members.end()) return;
    auto r = static_cast<int>(member - members.begin());
    record_death(r, fmt::format("process {} ended without leaving the world", pid));
  });
}

std::shared_ptr<WorldState> WorldState::bootstrapped(const ProcessWorldOptions& o) {
  WorldOptions world = world_options(o);
  int rank = o.bootstrap.rank;
  auto peers = std::make_shared<Peers>(rank, connect_peers(o.bootstrap, o.timeout));
  std::vector<int> members(index(world.size));
  std::iota(members.begin(), members.end(), 0);
  auto state = std::make_shared<WorldState>(world, rank, std::move(peers), std::move(members), 0);
  state->meet(rank, {.kind = CollectiveKind::kConfirm, .name = "world"});
  return state;
}

void WorldState::require_usable() const {
  if (::getpid() != creator) {
    throw UserError(
        fmt::format("the world belongs to process {}: a child of fork() cannot use it", creator));
  }
  if (finalised.load(std::memory_order_acquire)) throw UserError("the world has been finalised");
}

// A slot is written while no fault has won, and by one process alone: what a winner wrote stays.
void WorldState::record_fault(const FaultRecord& record) {
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

void WorldState::record_death(int rank, const std::string& what) {
  try {
    record_fault(world_fault("run", rank, rank,
                             fmt::format("rank {} died: {}", rank, printable(what, 400))));
  } catch (const std::bad_alloc&) {
    record_fault(world_fault("run", rank, rank, "no memory left"));  // few letters take none
  }
}

std::optional<FaultRecord> WorldState::fault() const {
  std::uint32_t winner = control->abort.load(std::memory_order_acquire);
  if (winner == 0 || winner > control->faults.size()) return std::nullopt;
  return control->faults[winner - 1].get();
}

Fault WorldState::winner() const {
  std::optional<FaultRecord> record = fault();
  STRETTO_CHECK(record.has_value(), "a rank reports a fault that nobody recorded");
  return Fault(*record);
}

void WorldState::record_interrupt(int rank) {
  record_fault(world_fault("run", rank, rank, fmt::format("rank {} was interrupted", rank)));
}

void WorldState::meet(int rank, const CollectiveRequest& request) {
  Rendezvous::Outcome outcome;
  try {
    outcome = rendezvous.meet(rank, request, options.timeout);
  } catch (...) {
    record_interrupt(rank);
    throw;
  }
  conclude(rank, request, outcome);
}

void WorldState::conclude(int rank, const CollectiveRequest& request,
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
std::uint64_t WorldState::next_id(int rank) {
  return control->seats[index(rank)].num_ids.fetch_add(1, std::memory_order_relaxed);
}

// Does the own part of an agreed call and hears whether the others could do theirs.
void WorldState::confirm(int rank, const std::string& name, const std::function<void()>& act) {
  CollectiveRequest request{.kind = CollectiveKind::kConfirm, .name = name};
  try {
    act();
  } catch (const Fault&) {
    throw;
  } catch (const std::exception& e) {
    request.error = printable(reason_of(e), 800);
  }
  meet(rank, request);
}

WorldState::Block WorldState::allocate(int rank, const CollectiveRequest& request,
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

void WorldState::exchange(int rank, const CollectiveRequest& request,
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

void WorldState::come_together(int rank, const CollectiveRequest& request) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  meet(rank, request);
}

void WorldState::refuse(int rank, const std::string& name, const std::string& reason) {
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

std::shared_ptr<World> WorldState::split(int rank, std::uint64_t group, const std::string& error,
                                         const MakeWorld& make) {
  require_usable();
  CallGuard guard(in_call[index(rank)], rank);
  CollectiveRequest request{.kind = CollectiveKind::kSplit, .count = group, .error = error};
  meet(rank, request);
  std::uint64_t call = next_id(rank);
  std::shared_ptr<World> child;
  confirm(rank, "split", [&] {
    try {
      if (group != 0) child = make_child(call, group, rank, make);
    } catch (const Fault& fault) {
      // It counts the ranks of the group.
      int r = rank_in(group, fault.record().waited_for);
      throw Fault(world_fault(request.to_string(), rank, r,
                              fmt::format("rank {} ended or stalled in this call", r)));
    }
  });
  return child;
}

void WorldState::add_child(std::uint64_t group, const std::shared_ptr<WorldState>& child) {
  std::erase_if(children, [](const Child& c) { return c.state.expired(); });
  children.push_back({.group = group, .state = child});
}

std::shared_ptr<World> WorldState::make_child(std::uint64_t call, std::uint64_t group, int rank,
                                              const MakeWorld& make) {
  if (!peers) return child_of_threads(call, group, make);
  WorldOptions child{.size = std::popcount(group), .timeout = options.timeout};
  std::vector<int> child_members;
  for (int r : ranks_of(group)) child_members.push_back(members[index(r)]);
  int own = std::popcount(group & ((std::uint64_t{1} << rank) - 1));
  auto state = std::make_shared<WorldState>(child, own, peers, std::move(child_members),
                                            child_id(id, call, group));
  std::shared_ptr<World> world = make(state);
  std::lock_guard lock(mutex);
  add_child(group, state);
  return world;
}

// Made by the first member that comes, kept until the last has taken it.
std::shared_ptr<World> WorldState::child_of_threads(std::uint64_t call, std::uint64_t group,
                                                    const MakeWorld& make) {
  std::lock_guard lock(mutex);
  NewChild& made = new_children[{call, group}];
  if (made.world == nullptr) {
    auto state = std::make_shared<WorldState>(
        WorldOptions{.size = std::popcount(group), .timeout = options.timeout});
    made.world = make(state);
    add_child(group, state);
  }
  std::shared_ptr<World> world = made.world;
  if (++made.num_taken == std::popcount(group)) new_children.erase({call, group});
  return world;
}

void WorldState::release(int rank, int allocation_id) {
  if (allocation_id < 0 || finalised.load(std::memory_order_acquire)) return;
  if (heap->release(rank, static_cast<std::uint64_t>(allocation_id))) return;
  throw UserError(
      fmt::format("symmetric allocation {}: rank {} has already released it", allocation_id, rank));
}

int WorldState::first_gone() const { return peers ? peers->first_gone(members) : -1; }

void WorldState::require_all_here() {
  int gone = first_gone();
  if (gone < 0) return;
  FaultRecord record = world_fault(
      "recover", local.front(), gone,
      fmt::format("rank {} is gone: a world that has lost a process stays faulted", gone));
  record_fault(record);
  peers->blame(members[index(gone)]);
  throw Fault(record);
}

void WorldState::recover_step(const char* what) {
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

void WorldState::recover() {
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

void WorldState::fail_in_children(int rank, const std::string& what) {
  std::vector<Child> all;
  {
    std::lock_guard lock(mutex);
    all = children;
  }
  std::uint64_t bit = std::uint64_t{1} << rank;
  for (const Child& child : all) {
    std::shared_ptr<WorldState> state = child.state.lock();
    if (state == nullptr || (child.group & bit) == 0) continue;
    int own = std::popcount(child.group & (bit - 1));
    state->record_fault(
        world_fault("run", own, own, fmt::format("rank {} died: {}", own, printable(what, 400))));
  }
}

void WorldState::finalise() {
  if (::getpid() != creator || finalised.exchange(true)) return;
  if (peers && death_token_ >= 0) peers->unwatch(death_token_);
  for (int r : local) rendezvous.leave(r);
  heap->clear();
  heap.reset();
  peers.reset();
}

}  // namespace stretto
