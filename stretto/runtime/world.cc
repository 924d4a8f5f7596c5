#include "stretto/runtime/world.h"

#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/runtime/idle_rank.h"
#include "stretto/runtime/recorder.h"
#include "stretto/runtime/rendezvous.h"
#include "stretto/runtime/symmetric_heap.h"

namespace stretto {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

int checked_size(const WorldOptions& options) {
  if (options.size < 1 || options.size > World::kMaxWorldSize) {
    throw UserError(
        fmt::format("world size {}: need 1 to {} ranks", options.size, World::kMaxWorldSize));
  }
  if (options.timeout < std::chrono::milliseconds(1)) {
    throw UserError(fmt::format("world timeout {} ms: need at least 1", options.timeout.count()));
  }
  return options.size;
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

}  // namespace

struct World::State {
  explicit State(const WorldOptions& o)
      : options(o),
        rendezvous(checked_size(o)),
        heap(o.size),
        recorder(o.size),
        idle(index(o.size)) {
    auto cores = static_cast<int>(std::thread::hardware_concurrency());
    for (IdleRank& rank : idle) rank.set_crowded(o.size > cores);
    recorder.set_enabled(o.record);
  }

  void record_fault(FaultRecord record);
  void record_death(int rank, const char* what);
  Fault winner() const;
  void run_rank(Rank& rank, const std::function<void(Rank&)>& body, RunResult& result);
  int start_threads(const std::function<void(Rank&)>& body, RunResult& result,
                    std::vector<std::thread>& threads);
  void await(RunResult& result, int num_started);
  int meet(const Rank& rank, const CollectiveRequest& request, const std::function<int()>& act);

  const WorldOptions options;
  Rendezvous rendezvous;
  SymmetricHeap heap;
  Recorder recorder;
  std::vector<IdleRank> idle;                // [world]
  std::vector<std::unique_ptr<Rank>> ranks;  // [world]
  std::atomic<bool> running{false};
  std::atomic<bool> aborted{false};

  mutable std::mutex mutex;  // of what follows
  std::optional<FaultRecord> fault;
  std::map<int, std::function<void()>> restarts;
  int next_token = 0;
};

void World::State::record_fault(FaultRecord record) {
  {
    std::lock_guard lock(mutex);
    if (fault.has_value()) return;
    fault = std::move(record);
    aborted.store(true, std::memory_order_release);
  }
  rendezvous.abort();
  for (IdleRank& rank : idle) rank.wake();
}

void World::State::record_death(int rank, const char* what) {
  record_fault({.program = "world",
                .role = "run",
                .rank = rank,
                .waited_for = rank,
                .reason = fmt::format("rank {} died: {}", rank, printable(what, 400))});
}

Fault World::State::winner() const {
  std::lock_guard lock(mutex);
  STRETTO_CHECK(fault.has_value(), "a rank reports a fault that nobody recorded");
  return Fault(*fault);
}

void World::State::run_rank(Rank& rank, const std::function<void(Rank&)>& body, RunResult& result) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank.index()).c_str());
  std::exception_ptr error;
  try {
    body(rank);
  } catch (const Fault& e) {
    record_fault(e.record());
    error = std::current_exception();
  } catch (const std::exception& e) {
    record_death(rank.index(), e.what());
    error = std::current_exception();
  } catch (...) {
    record_death(rank.index(), "unknown exception");
    error = std::current_exception();
  }
  rendezvous.leave(rank.index());
  std::lock_guard lock(result.mutex);
  result.errors[index(rank.index())] = std::move(error);
  result.finished[index(rank.index())] = true;
  ++result.num_finished;
  result.changed.notify_all();
}

// Returns how many threads it could start; where that is too few, the world is faulted.
int World::State::start_threads(const std::function<void(Rank&)>& body, RunResult& result,
                                std::vector<std::thread>& threads) {
  threads.reserve(ranks.size());
  for (const std::unique_ptr<Rank>& rank : ranks) {
    try {
      threads.emplace_back([&, rank = rank.get()] { run_rank(*rank, body, result); });
    } catch (const std::system_error& e) {
      std::string reason = fmt::format("no thread for rank {}: {}", rank->index(), e.what());
      record_death(rank->index(), reason.c_str());
      result.errors[index(rank->index())] = std::make_exception_ptr(
          UserError(fmt::format("world of {} ranks: {}", options.size, reason)));
      break;
    }
  }
  return static_cast<int>(threads.size());
}

void World::State::await(RunResult& result, int num_started) {
  std::unique_lock lock(result.mutex);
  auto all = [&] { return result.num_finished == index(num_started); };
  bool was_aborted = false;
  while (!result.changed.wait_for(lock, options.timeout, all)) {
    // The first time round the others may be about to see the fault.
    bool stuck = std::exchange(was_aborted, aborted.load(std::memory_order_acquire));
    if (!stuck) continue;
    std::string still;
    for (int r = 0; r < num_started; ++r) {
      if (!result.finished[index(r)]) still += fmt::format(" {}", r);
    }
    log().warn("the world has faulted, but these ranks neither wait nor return:{}", still);
  }
}

int World::State::meet(const Rank& rank, const CollectiveRequest& request,
                       const std::function<int()>& act) {
  Rendezvous::Outcome outcome = rendezvous.meet(rank.index(), request, options.timeout, act);
  FaultRecord record{.program = "world",
                     .role = request.to_string(),
                     .rank = rank.index(),
                     .waited_for = outcome.missing};
  switch (outcome.status) {
    case Rendezvous::Status::kDone:
      return outcome.id;
    case Rendezvous::Status::kRefused:
      throw UserError(outcome.error);
    case Rendezvous::Status::kAborted:
      break;
    case Rendezvous::Status::kMissing:
      record.reason = fmt::format("deadline: rank {} did not come within {} ms", outcome.missing,
                                  options.timeout.count());
      record_fault(std::move(record));
      break;
    case Rendezvous::Status::kReturned:
      record.reason = fmt::format("rank {} has returned without this call", outcome.missing);
      record_fault(std::move(record));
      break;
  }
  throw winner();
}

World::World(const WorldOptions& options) : state_(std::make_unique<State>(options)) {
  for (int r = 0; r < options.size; ++r) state_->ranks.emplace_back(new Rank(this, r));
}

World::~World() = default;

int World::size() const { return state_->options.size; }
std::chrono::milliseconds World::timeout() const { return state_->options.timeout; }
Recorder& World::recorder() { return state_->recorder; }

void World::run(const std::function<void(Rank&)>& body) {
  State& s = *state_;
  if (s.running.exchange(true)) throw UserError("World::run: the world is already running");
  struct Guard {
    std::atomic<bool>& running;
    ~Guard() { running.store(false); }
  } guard{s.running};
  s.rendezvous.begin_run();
  RunResult result(s.options.size);
  std::vector<std::thread> threads;
  int num_started = s.start_threads(body, result, threads);
  s.await(result, num_started);
  for (std::thread& thread : threads) thread.join();
  rethrow_cause(result.errors);
}

bool World::faulted() const { return state_->aborted.load(std::memory_order_acquire); }

FaultRecord World::fault() const {
  std::lock_guard lock(state_->mutex);
  return state_->fault.value_or(FaultRecord{});
}

void World::recover() {
  State& s = *state_;
  if (s.running.load()) throw UserError("World::recover: the world is running");
  s.heap.zero_signals();
  s.rendezvous.reset();
  // Called without the lock, since a callback may register or remove another.
  std::map<int, std::function<void()>> restarts;
  {
    std::lock_guard lock(s.mutex);
    restarts = s.restarts;
  }
  for (const auto& [token, restart] : restarts) restart();
  std::lock_guard lock(s.mutex);
  s.fault.reset();
  s.aborted.store(false, std::memory_order_release);
}

int Rank::size() const { return world_->size(); }
std::chrono::milliseconds Rank::timeout() const { return world_->timeout(); }
Recorder& Rank::recorder() { return world_->recorder(); }

SymmetricBuffer Rank::allocate(const std::string& name, DType dtype, std::size_t elements) {
  World::State& s = *world_->state_;
  CollectiveRequest request{CollectiveKind::kBuffer, name, dtype, elements};
  return s.heap.buffer(
      s.meet(*this, request, [&] { return s.heap.add_buffer(name, dtype, elements); }));
}

SignalBlock Rank::allocate_signals(const std::string& name, std::size_t count) {
  World::State& s = *world_->state_;
  CollectiveRequest request{CollectiveKind::kSignals, name, DType::kI64, count};
  return s.heap.signals(s.meet(*this, request, [&] { return s.heap.add_signals(name, count); }));
}

void Rank::release(const SymmetricBuffer& buffer) {
  world_->state_->heap.release_buffer(buffer.id, index_);
}

void Rank::release(const SignalBlock& signals) {
  world_->state_->heap.release_signals(signals.id, index_);
}

void Rank::barrier() {
  world_->state_->meet(*this, {.kind = CollectiveKind::kBarrier}, [] { return 0; });
}

int Rank::on_recover(std::function<void()> restart) {
  World::State& s = *world_->state_;
  std::lock_guard lock(s.mutex);
  s.restarts.emplace(s.next_token, std::move(restart));
  return s.next_token++;
}

void Rank::remove_on_recover(int token) {
  World::State& s = *world_->state_;
  std::lock_guard lock(s.mutex);
  s.restarts.erase(token);
}

bool Rank::aborted() const { return world_->state_->aborted.load(std::memory_order_acquire); }

void Rank::raise_fault(FaultRecord record) {
  world_->state_->record_fault(std::move(record));
  throw_fault();
}

void Rank::throw_fault() const { throw world_->state_->winner(); }

void Rank::pause(int polls) const {
  world_->state_->idle[static_cast<std::size_t>(index_)].pause(polls);
}

void Rank::notify_changed(int to) const {
  world_->state_->idle[static_cast<std::size_t>(to)].wake();
}

}  // namespace stretto
