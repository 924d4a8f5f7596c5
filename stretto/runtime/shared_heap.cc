// The symmetric heap of a world of processes: every rank makes its own copy and passes it to the
// others. A copy goes with the last process that maps it.
#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/runtime/symmetric_heap.h"

namespace stretto {
namespace {

class SharedHeap : public SymmetricHeap {
 public:
  SharedHeap(std::shared_ptr<Peers> peers, std::uint64_t world, std::vector<int> members)
      : peers_(std::move(peers)), world_(world), members_(std::move(members)) {}

  void create(int rank, const Allocation& allocation) override {
    check_allocation_size(allocation, members_.size());
    Block block{.bytes = std::max<std::size_t>(allocation.bytes(), 1),
                .signals = allocation.signals,
                .own = static_cast<std::size_t>(rank)};
    block.memory.resize(members_.size());
    try {
      block.memory[block.own] = SharedMemory::create(allocation.name, block.bytes);
    } catch (const UserError& e) {
      refuse_allocation(allocation, members_.size(), e.what());
    }
    std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(allocation.id, std::move(block));
  }

  std::vector<std::byte*> attach(int, std::uint64_t id, Deadline deadline,
                                 const std::function<bool()>& aborts) override {
    Block& block = find(id);
    pass_on(id, block, deadline);
    std::vector<std::byte*> at(members_.size(), nullptr);
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (r != block.own) {
        Fd fd = peers_->receive(members_[r], {world_, id}, deadline, aborts);
        if (!fd) return at;
        block.memory[r] = SharedMemory::open(std::move(fd), block.bytes);
      }
      block.memory[r].close_fd();
      at[r] = block.memory[r].data();
    }
    return at;
  }

  bool release(int, std::uint64_t id) override {
    Block last;  // unmapped after the lock is given back
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(id);
    if (found == blocks_.end()) return false;
    last = std::move(found->second);
    blocks_.erase(found);
    return true;
  }

  void zero_signals() override {
    std::lock_guard lock(mutex_);
    for (auto& [id, block] : blocks_) {
      if (block.signals) std::memset(block.memory[block.own].data(), 0, block.bytes);
    }
  }

  void clear() override {
    std::lock_guard lock(mutex_);
    blocks_.clear();
    peers_->discard(world_, ~std::uint64_t{0});
  }

 private:
  struct Block {
    std::size_t bytes = 0;  // per rank
    bool signals = false;
    std::size_t own = 0;
    std::vector<SharedMemory> memory;  // [world]
  };

  // References into the map stay: one thread allocates and releases for the rank.
  Block& find(std::uint64_t id) {
    std::lock_guard lock(mutex_);
    return blocks_.at(id);
  }

  // A peer that takes nothing until the deadline will be missed at the next meeting.
  void pass_on(std::uint64_t id, const Block& block, Deadline deadline) {
    for (std::size_t r = 0; r < members_.size(); ++r) {
      if (r == block.own) continue;
      peers_->send(members_[r], {world_, id}, block.memory[block.own].fd(), deadline);
    }
  }

  const std::shared_ptr<Peers> peers_;
  const std::uint64_t world_;
  const std::vector<int> members_;  // [world] ranks among the peers
  std::mutex mutex_;
  std::map<std::uint64_t, Block> blocks_;
};

}  // namespace

std::unique_ptr<SymmetricHeap> make_shared_heap(std::shared_ptr<Peers> peers, std::uint64_t world,
                                                std::vector<int> members) {
  return std::make_unique<SharedHeap>(std::move(peers), world, std::move(members));
}

}  // namespace stretto
