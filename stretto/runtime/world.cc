#include "stretto/runtime/world.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "stretto/base/interrupts.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/runtime/world_state.h"

namespace stretto {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void require_processes(const Peers* peers, const char* call) {
  if (peers == nullptr) throw UserError(fmt::format("{}: not in a world of processes", call));
}

// What the threads of one run leave for the caller.
struct RunResult {
  explicit RunResult(int size) : finished(index(size)), errors(index(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t num_finished = 0;
  std::vector<bool> finished;              // [world]
  std::vector<std::exception_ptr> errors;  // [world]
};

bool is_fault(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Fault&) {
    return true;
  } catch (...) {
    return false;
  }
}

void rethrow_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr fault;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    if (!is_fault(error)) std::rethrow_exception(error);
    if (!fault) fault = error;
  }
  if (fault) std::rethrow_exception(fault);
}

// The threads of one run.
class Runner {
 public:
  Runner(WorldState& state, const std::vector<std::unique_ptr<Rank>>& ranks,
         const std::function<void(Rank&)>& body)
      : state_(state), ranks_(ranks), body_(body), result_(state.options.size) {}

  void run() {
    for (int r : state_.local) state_.rendezvous.begin_run(r);
    start_threads();
    await();
    for (std::thread& thread : threads_) thread.join();
    // Those that did start may have failed for the same want of memory.
    if (start_error_) std::rethrow_exception(start_error_);
    rethrow_cause(result_.errors);
  }

 private:
  void run_rank(Rank& rank);
  void start_threads();
  void await();

  WorldState& state_;
  const std::vector<std::unique_ptr<Rank>>& ranks_;
  const std::function<void(Rank&)>& body_;
  RunResult result_;
  std::exception_ptr start_error_;
  std::vector<std::thread> threads_;
};

constexpr std::size_t kReserveBytes = std::size_t{64} << 10;

void Runner::run_rank(Rank& rank) {
  int r = rank.index();
  pthread_setname_np(pthread_self(), fmt::format("rank {}", r).c_str());
  std::exception_ptr error;
  // Where a rank dies for want of memory, there is some for saying so.
  std::unique_ptr<std::byte[]> reserve;
  auto fail = [&](const std::string& what) {
    error = std::current_exception();
    try {
      state_.fail_in_children(r, what);
    } catch (const std::bad_alloc&) {
      // They hear of it where they next wait.
    }
  };
  try {
    reserve = std::make_unique<std::byte[]>(kReserveBytes);
    body_(rank);
  } catch (const Fault& e) {
    reserve.reset();
    state_.record_fault(e.record());
    fail(e.what());
  } catch (const std::exception& e) {
    reserve.reset();
    state_.record_death(r, reason_of(e));
    fail(reason_of(e));
  } catch (...) {
    reserve.reset();
    state_.record_death(r, "unknown exception");
    fail("unknown exception");
  }
  state_.rendezvous.end_run(r);
  std::lock_guard lock(result_.mutex);
  result_.errors[index(r)] = std::move(error);
  result_.finished[index(r)] = true;
  ++result_.num_finished;
  result_.changed.notify_all();
}

// Where there are too few threads, the world is faulted.
void Runner::start_threads() {
  threads_.reserve(state_.local.size());
  // Without memory for a thread there may be none for the report either.
  auto reserve = std::make_unique<std::byte[]>(kReserveBytes);
  for (int r : state_.local) {
    try {
      threads_.emplace_back([this, r] { run_rank(*ranks_[index(r)]); });
    } catch (const std::system_error& e) {
      reserve.reset();
      std::string reason = fmt::format("no thread for rank {}: {}", r, e.what());
      state_.record_death(r, reason);
      start_error_ = std::make_exception_ptr(
          UserError(fmt::format("world of {} ranks: {}", state_.options.size, reason)));
      break;
    }
  }
  for (std::size_t i = threads_.size(); i < state_.local.size(); ++i) {
    state_.rendezvous.end_run(state_.local[i]);
  }
}

void Runner::await() {
  std::unique_lock lock(result_.mutex);
  auto all = [&] { return result_.num_finished == threads_.size(); };
  bool was_aborted = false, was_told = false;
  while (!result_.changed.wait_for(lock, state_.options.timeout, all)) {
    // The first time round the others may be about to see the fault.
    bool stuck = std::exchange(was_aborted, state_.aborted());
    if (!stuck || std::exchange(was_told, true)) continue;
    std::string still;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      int r = state_.local[i];
      if (!result_.finished[index(r)]) still += fmt::format(" {}", r);
    }
    log_warning(
        fmt::format("the world has faulted, but these ranks neither wait nor return:{}", still));
  }
}

}  // namespace

static_assert(World::kMaxWorldSize == kMaxRanks);

World::World(std::shared_ptr<WorldState> state) : state_(std::move(state)) {
  ranks_.resize(index(size()));
  for (int r : state_->local) ranks_[index(r)].reset(new Rank(this, r));
}

World::World(const WorldOptions& options) : World(std::make_shared<WorldState>(options)) {}
World::World(const ProcessWorldOptions& options) : World(WorldState::bootstrapped(options)) {}

// In a child of fork() the state stays as it is: its threads did not come along, and its locks may
// be held by them.
World::~World() {
  if (::getpid() != state_->creator) new std::shared_ptr<WorldState>(std::move(state_));
}

int World::size() const { return state_->options.size; }
std::chrono::milliseconds World::timeout() const { return state_->options.timeout; }
const std::vector<int>& World::local_ranks() const { return state_->local; }
Recorder& World::recorder() { return state_->recorder; }
bool World::faulted() const { return state_->aborted(); }
FaultRecord World::fault() const { return state_->fault().value_or(FaultRecord{}); }
void World::recover() { state_->recover(); }

Rank& World::rank(int rank) {
  bool is_local = std::count(state_->local.begin(), state_->local.end(), rank) > 0;
  if (!is_local) throw UserError(fmt::format("rank {} is not one of this process", rank));
  return *ranks_[index(rank)];
}

void World::finalise() {
  if (state_->running.load()) throw UserError("World::finalise: the world is running");
  state_->finalise();
}

void World::run(const std::function<void(Rank&)>& body) {
  state_->require_usable();
  if (state_->running.exchange(true)) throw UserError("World::run: the world is already running");
  struct Guard {
    std::atomic<bool>& running;
    ~Guard() { running.store(false); }
  } guard{state_->running};
  Runner(*state_, ranks_, body).run();
}

int Rank::size() const { return world_->size(); }
std::chrono::milliseconds Rank::timeout() const { return world_->timeout(); }
Recorder& Rank::recorder() { return world_->recorder(); }

SymmetricBuffer Rank::allocate(const std::string& name, DType dtype, std::size_t elements) {
  CollectiveRequest request{
      .kind = CollectiveKind::kBuffer, .name = name, .dtype = dtype, .count = elements};
  WorldState::Block block = world_->state_->allocate(index_, request, size_bytes(dtype));
  return {.name = name,
          .dtype = dtype,
          .bytes = elements * size_bytes(dtype),
          .at = std::move(block.at),
          .id = block.id};
}

SignalBlock Rank::allocate_signals(const std::string& name, std::size_t count) {
  CollectiveRequest request{.kind = CollectiveKind::kSignals, .name = name, .count = count};
  WorldState::Block block = world_->state_->allocate(index_, request, sizeof(SignalCounter));
  SignalBlock signals{.name = name, .count = count, .id = block.id};
  for (std::byte* at : block.at) signals.at.push_back(reinterpret_cast<SignalCounter*>(at));
  return signals;
}

void Rank::release(const SymmetricBuffer& buffer) { world_->state_->release(index_, buffer.id); }
void Rank::release(const SignalBlock& signals) { world_->state_->release(index_, signals.id); }
void Rank::barrier() { world_->state_->come_together(index_, {.kind = CollectiveKind::kBarrier}); }

void Rank::agree(const std::string& name, std::uint64_t content) {
  world_->state_->come_together(index_,
                                {.kind = CollectiveKind::kCall, .name = name, .count = content});
}

bool Rank::same(const std::string& name, std::uint64_t content) {
  std::uint64_t call = num_calls();
  try {
    agree(name, content);
    return true;
  } catch (const Disagreement&) {
    if (world_->state_->rendezvous.differs_in_content_alone(call)) return false;
    throw;
  }
}

void Rank::refuse(const std::string& name, const std::string& reason) {
  world_->state_->refuse(index_, name, reason);
}

std::uint64_t Rank::num_calls() const { return world_->state_->rendezvous.num_calls(index_); }

std::string Rank::refusal(std::uint64_t call) const {
  return world_->state_->rendezvous.refusal(call);
}

std::shared_ptr<Rank> Rank::split(const std::vector<int>& group) {
  std::uint64_t bits = 0;
  std::string error;
  for (int r : group) {
    if (r < 0 || r >= size()) {
      error = fmt::format("split: rank {} of {} names rank {}", index_, size(), r);
      break;
    }
    bits |= std::uint64_t{1} << r;
  }
  if (error.empty() && !group.empty() && (bits >> index_ & 1) == 0) {
    error = fmt::format("split: rank {} names a group without itself", index_);
  }
  std::shared_ptr<World> child = world_->state_->split(
      index_, bits, error,
      [](std::shared_ptr<WorldState> state) { return std::make_shared<World>(std::move(state)); });
  if (child == nullptr) return nullptr;
  Rank* handle = &child->rank(std::popcount(bits & ((std::uint64_t{1} << index_) - 1)));
  return {std::move(child), handle};
}

void Rank::exchange_memory(const std::string& name, std::size_t bytes,
                           const std::function<Fd()>& make,
                           const std::function<void(int, Fd)>& open) {
  require_processes(world_->state_->peers.get(), "exchange_memory");
  CollectiveRequest request{.kind = CollectiveKind::kBuffer, .name = name, .count = bytes};
  world_->state_->exchange(index_, request, make, open);
}

int Rank::watch_deaths(std::function<void(int)> on_death) {
  WorldState& s = *world_->state_;
  require_processes(s.peers.get(), "watch_deaths");
  return s.peers->watch([members = s.members, on_death = std::move(on_death)](int peer, int) {
    auto member = std::find(members.begin(), members.end(), peer);
    if (member != members.end()) on_death(static_cast<int>(member - members.begin()));
  });
}

void Rank::unwatch_deaths(int token) {
  WorldState& s = *world_->state_;
  if (s.peers) s.peers->unwatch(token);
}

int Rank::on_recover(std::function<void()> restart) {
  WorldState& s = *world_->state_;
  std::lock_guard lock(s.mutex);
  s.restarts.emplace(s.next_token, std::move(restart));
  return s.next_token++;
}

void Rank::remove_on_recover(int token) {
  WorldState& s = *world_->state_;
  std::lock_guard lock(s.mutex);
  s.restarts.erase(token);
}

bool Rank::aborted() const { return world_->state_->aborted(); }

void Rank::raise_fault(FaultRecord record) {
  world_->state_->record_fault(record);
  throw_fault();
}

void Rank::throw_fault() const { throw world_->state_->winner(); }
void Rank::pause(int polls) const {
  try {
    Interrupts::look();
  } catch (...) {
    world_->state_->record_interrupt(index_);
    throw;
  }
  world_->state_->control->idle[WorldState::index(index_)].pause(polls);
}
void Rank::notify_changed(int to) const {
  world_->state_->control->idle[WorldState::index(to)].wake();
}

}  // namespace stretto
