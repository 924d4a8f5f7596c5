#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "executable.h"

namespace stretto::python {
namespace {

constexpr std::chrono::milliseconds kAbortPoll(50);

}  // namespace

Session::Session(std::unique_ptr<World> world)
    : world_(std::move(world)),
      ranks_(static_cast<std::size_t>(world_->size())),
      num_local_(world_->size()),
      memories_(ranks_.size()) {
  open();
}

Session::~Session() { close(); }

// The bodies only wait: callers use the ranks from threads of their own.
void Session::open() {
  leave_ = false;
  runner_ = std::thread([this] {
    try {
      world_->run([this](Rank& rank) {
        std::unique_lock lock(mutex_);
        ranks_[static_cast<std::size_t>(rank.index())] = &rank;
        ++num_present_;
        changed_.notify_all();
        // World::run waits for its bodies once the world has faulted.
        while (!leave_ && !rank.aborted()) changed_.wait_for(lock, kAbortPoll);
      });
    } catch (const std::exception& e) {
      std::lock_guard lock(mutex_);
      failure_ = e.what();
      changed_.notify_all();
    }
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_present_ == num_local_ || !failure_.empty(); });
  if (failure_.empty()) return;
  lock.unlock();
  close();
  throw UserError(failure_);
}

void Session::close() {
  {
    std::lock_guard lock(mutex_);
    leave_ = true;
    changed_.notify_all();
  }
  if (runner_.joinable()) runner_.join();
  std::lock_guard lock(mutex_);
  std::fill(ranks_.begin(), ranks_.end(), nullptr);
  num_present_ = 0;
}

Rank& Session::rank(int index) {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  if (index < 0 || index >= size() || ranks_[static_cast<std::size_t>(index)] == nullptr) {
    throw UserError(fmt::format("stretto: rank {} is none of this process's", index));
  }
  return *ranks_[static_cast<std::size_t>(index)];
}

const SymmetricMemory* Session::find_memory(int rank, const std::byte* address) {
  std::lock_guard lock(mutex_);
  const auto& memories = memories_[static_cast<std::size_t>(rank)];
  auto found = memories.upper_bound(address);
  if (found == memories.end() || address < found->second->data()) return nullptr;
  return found->second;
}

void Session::add_memory(int rank, const std::byte* end, const SymmetricMemory* memory) {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank)].emplace(end, memory);
}

void Session::remove_memory(int rank, const std::byte* end) {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank)].erase(end);
}

void Session::finalize() {
  {
    std::lock_guard lock(mutex_);
    if (finalized_) return;
    finalized_ = true;
  }
  close();
}

void Session::recover() {
  std::unique_lock lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  std::uint64_t mine = num_recoveries_;
  if (++num_recovering_ < num_local_) {
    if (changed_.wait_for(lock, world_->timeout(), [&] { return num_recoveries_ != mine; })) return;
    int came = num_recovering_--;
    throw UserError(
        fmt::format("stretto.recover(): only {} of {} ranks called it", came, num_local_));
  }
  num_recovering_ = 0;
  lock.unlock();
  close();
  world_->recover();
  open();
  lock.lock();
  ++num_recoveries_;
  changed_.notify_all();
}

}  // namespace stretto::python
