#include "stretto/runtime/world.h"

#include <fmt/format.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpinPolls = 64;    // then yield
constexpr int kYieldPolls = 256;  // then sleep
constexpr std::chrono::microseconds kLongestSleep{1000};

std::size_t idx(int rank) { return static_cast<std::size_t>(rank); }

// Storage of one symmetric allocation: every rank's part on cache lines of its own.
struct Allocation {
  std::vector<std::unique_ptr<std::byte[]>> raw;
  std::vector<std::unique_ptr<Counter[]>> counters;
  std::size_t num_counters = 0;
  int released = 0;
};

std::byte* align_up(std::byte* address) {
  auto value = reinterpret_cast<std::uintptr_t>(address);
  return address + (64 - value % 64) % 64;
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// One collective call at a time: every rank posts its request, the last one checks that all agree
// and carries it out, and all leave with the same result or the same error.
struct World::State {
  explicit State(const WorldOptions& o)
      : options(o), requests(idx(o.size)), handles(idx(o.size)), recorder(o.size) {}

  WorldOptions options;
  std::atomic<bool> abort{false};
  std::atomic<bool> running{false};

  mutable std::mutex mutex;
  std::condition_variable changed;
  FaultRecord fault;

  // The collective call in progress, guarded by `mutex`.
  std::vector<std::string> requests;
  int num_arrived = 0;
  std::uint64_t generation = 0;
  std::string error;
  int result = -1;

  std::map<int, Allocation> allocations;
  int next_id = 0;
  std::map<int, std::function<void()>> on_recover;
  int next_token = 0;
  std::vector<std::unique_ptr<Rank>> handles;
  Recorder recorder;

  // Returns the id that `complete` made; throws the same UserError on every rank when requests
  // differ.
  int collective(Rank& rank, std::string request, const std::function<int()>& complete);
  std::string disagreement() const;
  void raise(FaultRecord record);
};

std::string World::State::disagreement() const {
  for (std::size_t r = 1; r < requests.size(); ++r) {
    if (requests[r] != requests[0]) {
      return fmt::format("ranks disagree in a collective call: rank 0 asked for {}, rank {} for {}",
                         requests[0], r, requests[r]);
    }
  }
  return "";
}

int World::State::collective(Rank& rank, std::string request,
                             const std::function<int()>& complete) {
  if (abort) rank.throw_fault();
  std::unique_lock lock(mutex);
  std::uint64_t mine = generation;
  requests[idx(rank.index())] = std::move(request);
  if (++num_arrived == options.size) {
    error = disagreement();
    result = error.empty() ? complete() : -1;
    num_arrived = 0;
    for (std::string& r : requests) r.clear();
    ++generation;
    changed.notify_all();
  } else {
    auto over = [&] { return generation != mine || abort; };
    if (!changed.wait_for(lock, options.timeout, over)) {
      FaultRecord record{
          .program = "collective call", .role = requests[idx(rank.index())], .rank = rank.index()};
      for (std::size_t r = 0; r < requests.size(); ++r) {
        if (requests[r].empty()) record.waited_for = static_cast<int>(r);
      }
      record.expected = options.size;
      record.seen = num_arrived;
      record.reason = fmt::format("deadline: rank {} did not come within {} ms", record.waited_for,
                                  options.timeout.count());
      lock.unlock();
      rank.raise_fault(std::move(record));
    }
    if (generation == mine) {
      lock.unlock();
      rank.throw_fault();
    }
  }
  // Stable until every rank has left: the next collective call needs all of them.
  if (!error.empty()) throw UserError(error);
  return result;
}

void World::State::raise(FaultRecord record) {
  std::lock_guard lock(mutex);
  if (abort) return;
  fault = std::move(record);
  abort = true;
  changed.notify_all();
}

World::World(const WorldOptions& options) {
  if (options.size < 1 || options.size > kMaxWorldSize) {
    throw UserError(fmt::format("world size is {}, need 1..{}", options.size, kMaxWorldSize));
  }
  state_ = std::make_unique<State>(options);
  state_->recorder.set_enabled(options.record);
  for (int r = 0; r < options.size; ++r) state_->handles[idx(r)].reset(new Rank(this, r));
}

World::~World() = default;

int World::size() const { return state_->options.size; }
std::chrono::milliseconds World::timeout() const { return state_->options.timeout; }
Recorder& World::recorder() { return state_->recorder; }
bool World::faulted() const { return state_->abort; }

FaultRecord World::fault() const {
  std::lock_guard lock(state_->mutex);
  return state_->fault;
}

void World::run(const std::function<void(Rank&)>& body) {
  if (state_->running.exchange(true))
    throw UserError("World::run: called while the world is running");
  std::vector<std::exception_ptr> own(
      idx(size()));  // failures that are not echoes of the world's fault
  std::atomic<bool> any_fault{false};
  auto run_rank = [&](int r) {
    try {
      body(*state_->handles[idx(r)]);
    } catch (const Fault&) {
      any_fault = true;
      if (!state_->abort) own[idx(r)] = std::current_exception();
    } catch (const std::exception& e) {
      own[idx(r)] = std::current_exception();
      state_->raise({.program = "world",
                     .role = "rank body",
                     .rank = r,
                     .waited_for = r,
                     .reason = fmt::format("rank {} died: {}", r, e.what())});
    } catch (...) {
      own[idx(r)] = std::current_exception();
      state_->raise({.program = "world",
                     .role = "rank body",
                     .rank = r,
                     .waited_for = r,
                     .reason = fmt::format("rank {} died of an unknown exception", r)});
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < size(); ++r) threads.emplace_back(run_rank, r);
  run_rank(0);
  for (std::thread& t : threads) t.join();
  state_->running = false;
  for (const std::exception_ptr& e : own) {
    if (e) std::rethrow_exception(e);
  }
  if (any_fault) throw Fault(fault());
}

void World::recover() {
  if (state_->running) throw UserError("World::recover: called while the world is running");
  std::lock_guard lock(state_->mutex);
  for (auto& [id, allocation] : state_->allocations) {
    for (auto& counters : allocation.counters) {
      for (std::size_t i = 0; i < allocation.num_counters; ++i) counters[i].value = 0;
    }
  }
  for (auto& [token, restart] : state_->on_recover) restart();
  for (std::string& r : state_->requests) r.clear();
  state_->num_arrived = 0;
  state_->fault = {};
  state_->abort = false;
}

int Rank::size() const { return world_->size(); }
std::chrono::milliseconds Rank::timeout() const { return world_->timeout(); }
Recorder& Rank::recorder() { return world_->recorder(); }
bool Rank::aborted() const { return world_->state_->abort.load(std::memory_order_relaxed); }

SymmetricBuffer Rank::allocate(const std::string& name, DType dtype, std::size_t elements) {
  World::State& s = *world_->state_;
  std::size_t bytes = elements * size_bytes(dtype);
  auto make = [&] {
    Allocation allocation;
    for (int r = 0; r < size(); ++r)
      allocation.raw.push_back(std::make_unique<std::byte[]>(bytes + 128));
    s.allocations.emplace(s.next_id, std::move(allocation));
    return s.next_id++;
  };
  std::string request = fmt::format("buffer '{}' of {} x {}", name, elements, stretto::name(dtype));
  SymmetricBuffer buffer{.name = name, .dtype = dtype, .bytes = bytes, .at = {}, .id = -1};
  buffer.id = s.collective(*this, std::move(request), make);
  std::lock_guard lock(s.mutex);
  for (auto& raw : s.allocations.at(buffer.id).raw) buffer.at.push_back(align_up(raw.get()));
  return buffer;
}

SignalBlock Rank::allocate_signals(const std::string& name, std::size_t count) {
  World::State& s = *world_->state_;
  auto make = [&] {
    Allocation allocation;
    allocation.num_counters = count;
    for (int r = 0; r < size(); ++r)
      allocation.counters.push_back(std::make_unique<Counter[]>(count));
    s.allocations.emplace(s.next_id, std::move(allocation));
    return s.next_id++;
  };
  SignalBlock block{.name = name, .count = count, .at = {}, .id = -1};
  block.id = s.collective(*this, fmt::format("signals '{}' x {}", name, count), make);
  std::lock_guard lock(s.mutex);
  for (auto& counters : s.allocations.at(block.id).counters) block.at.push_back(counters.get());
  return block;
}

void World::release(int allocation_id) {
  std::lock_guard lock(state_->mutex);
  auto found = state_->allocations.find(allocation_id);
  if (found == state_->allocations.end()) return;
  if (++found->second.released == size()) state_->allocations.erase(found);
}

void Rank::release(const SymmetricBuffer& buffer) { world_->release(buffer.id); }
void Rank::release(const SignalBlock& signals) { world_->release(signals.id); }

void Rank::barrier() {
  world_->state_->collective(*this, "barrier", [] { return 0; });
}

int Rank::on_recover(std::function<void()> restart) {
  std::lock_guard lock(world_->state_->mutex);
  int token = world_->state_->next_token++;
  world_->state_->on_recover.emplace(token, std::move(restart));
  return token;
}

void Rank::remove_on_recover(int token) {
  std::lock_guard lock(world_->state_->mutex);
  world_->state_->on_recover.erase(token);
}

void Rank::raise_fault(FaultRecord record) {
  world_->state_->raise(std::move(record));
  throw_fault();
}

void Rank::throw_fault() const { throw Fault(world_->fault()); }

void Rank::pause(int polls) const {
  if (polls < kSpinPolls) {
    cpu_relax();
  } else if (polls < kYieldPolls) {
    std::this_thread::yield();
  } else {
    auto us = std::min<std::chrono::microseconds>(
        std::chrono::microseconds(20 + (polls - kYieldPolls) * 5), kLongestSleep);
    std::this_thread::sleep_for(us);
  }
}

}  // namespace stretto
