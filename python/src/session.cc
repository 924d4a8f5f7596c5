#include "session.h"

#include <fmt/format.h>

#include <exception>

#include "executable.h"

namespace stretto::python {

Session::Session(std::unique_ptr<World> world)
    : world_(std::move(world)), memories_(static_cast<std::size_t>(world_->size())) {}

Rank& Session::rank(int index) {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  return world_->rank(index);
}

const SymmetricMemory* Session::find_memory(int rank, const std::byte* address) {
  std::lock_guard lock(mutex_);
  const auto& memories = memories_[static_cast<std::size_t>(rank)];
  auto found = memories.upper_bound(address);
  if (found == memories.end() || address < found->second->data()) return nullptr;
  return found->second;
}

void Session::add_memory(int rank, const SymmetricMemory& memory) {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank)].emplace(memory.data() + memory.buffer().bytes, &memory);
  ++num_memories_;
}

void Session::remove_memory(Rank& rank, const SymmetricMemory& memory) noexcept {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank.index())].erase(memory.data() + memory.buffer().bytes);
  --num_memories_;
  if (left_) return;
  try {
    rank.release(memory.buffer());
    if (finalized_ && num_memories_ == 0) {
      left_ = true;
      world_->finalise();
    }
  } catch (const std::exception&) {  // a forked child: the memory is its parent's
  }
}

void Session::finalize(bool at_once) {
  std::lock_guard lock(mutex_);
  finalized_ = true;
  if (left_ || (num_memories_ > 0 && !at_once)) return;
  left_ = true;
  world_->finalise();
}

void Session::recover() {
  std::unique_lock lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  auto num_local = static_cast<int>(world_->local_ranks().size());
  std::uint64_t mine = num_recoveries_;
  if (++num_recovering_ < num_local) {
    if (changed_.wait_for(lock, world_->timeout(), [&] { return num_recoveries_ != mine; })) return;
    int came = num_recovering_--;
    throw UserError(
        fmt::format("stretto.recover(): only {} of {} ranks called it", came, num_local));
  }
  num_recovering_ = 0;
  world_->recover();
  ++num_recoveries_;
  changed_.notify_all();
}

}  // namespace stretto::python
