#include "stretto/runtime/symmetric_heap.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max() - 2 * kAlignment;

// The first aligned address within `block`, which has kAlignment bytes to spare. What lies behind
// the buffer is made to trip AddressSanitizer.
std::byte* aligned_within(std::byte* block, std::size_t bytes) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  std::byte* at = block + (kAlignment - address % kAlignment) % kAlignment;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(at + bytes, static_cast<std::size_t>(block + kAlignment - at));
#else
  static_cast<void>(bytes);
#endif
  return at;
}

// Made once for all ranks by the first that comes, freed when the last rank has released it.
class PrivateHeap : public SymmetricHeap {
 public:
  explicit PrivateHeap(int num_ranks) : num_ranks_(static_cast<std::size_t>(num_ranks)) {}

  void create(int, const Allocation& allocation) override {
    check_allocation_size(allocation, num_ranks_);
    std::lock_guard lock(mutex_);
    if (blocks_.contains(allocation.id)) return;
    Block block{.bytes = allocation.bytes(), .signals = allocation.signals};
    for (std::size_t r = 0; r < num_ranks_; ++r) {
      // calloc, because large blocks come as untouched zero pages: each is then placed near the
      // rank that first writes it, and set-up does not write memory that may never be used.
      block.storage.emplace_back(static_cast<std::byte*>(std::calloc(block.bytes + kAlignment, 1)));
      std::byte* storage = block.storage.back().get();
      if (storage == nullptr) refuse_allocation(allocation, num_ranks_, "out of memory");
      block.at.push_back(aligned_within(storage, block.bytes));
    }
    blocks_.emplace(allocation.id, std::move(block));
  }

  std::vector<std::byte*> attach(int, std::uint64_t id, Deadline,
                                 const std::function<bool()>&) override {
    std::lock_guard lock(mutex_);
    return blocks_.at(id).at;
  }

  bool release(int rank, std::uint64_t id) override {
    std::uint64_t bit = std::uint64_t{1} << rank;
    std::uint64_t all = ~std::uint64_t{0} >> (64 - num_ranks_);
    Block last;  // freed after the lock is given back
    std::lock_guard lock(mutex_);
    auto found = blocks_.find(id);
    if (found == blocks_.end() || (found->second.released & bit) != 0) return false;
    found->second.released |= bit;
    if (found->second.released == all) {
      last = std::move(found->second);
      blocks_.erase(found);
    }
    return true;
  }

  void zero_signals() override {
    std::lock_guard lock(mutex_);
    for (auto& [id, block] : blocks_) {
      if (!block.signals) continue;
      for (std::byte* at : block.at) std::memset(at, 0, block.bytes);
    }
  }

  void clear() override {
    std::lock_guard lock(mutex_);
    blocks_.clear();
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Block {
    std::size_t bytes = 0;  // per rank
    bool signals = false;
    std::vector<std::unique_ptr<std::byte, Free>> storage;  // [world]
    std::vector<std::byte*> at;                             // [world]
    std::uint64_t released = 0;                             // bit per rank
  };

  const std::size_t num_ranks_;
  std::mutex mutex_;
  std::map<std::uint64_t, Block> blocks_;
};

}  // namespace

void refuse_allocation(const Allocation& allocation, std::size_t num_ranks,
                       const std::string& reason) {
  throw UserError(fmt::format("symmetric allocation '{}' of {} x {} bytes on each of {} ranks: {}",
                              printable(allocation.name), allocation.count, allocation.each_bytes,
                              num_ranks, reason));
}

void check_allocation_size(const Allocation& allocation, std::size_t num_ranks) {
  if (allocation.count > kMaxBytes / allocation.each_bytes) {
    refuse_allocation(allocation, num_ranks, "size overflows");
  }
}

std::unique_ptr<SymmetricHeap> make_private_heap(int num_ranks) {
  return std::make_unique<PrivateHeap>(num_ranks);
}

}  // namespace stretto
