#include "stretto/runtime/symmetric_heap.h"

#include <fmt/format.h>

#include <limits>
#include <new>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max() - 2 * kAlignment;

[[noreturn]] void refuse(const std::string& name, int num_ranks, std::size_t count,
                         std::size_t each_bytes, const char* reason) {
  throw UserError(fmt::format("symmetric allocation '{}' of {} x {} bytes on each of {} ranks: {}",
                              printable(name), count, each_bytes, num_ranks, reason));
}

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

}  // namespace

int SymmetricHeap::add_buffer(const std::string& name, DType dtype, std::size_t elements) {
  std::size_t each = size_bytes(dtype);
  if (elements > kMaxBytes / each) refuse(name, num_ranks_, elements, each, "size overflows");
  Buffer buffer;
  buffer.handle = {.name = name, .dtype = dtype, .bytes = elements * each};
  for (int r = 0; r < num_ranks_; ++r) {
    // calloc, because large blocks come as untouched zero pages: each is then placed near the rank
    // that first writes it, and set-up does not write memory that may never be used.
    buffer.storage.emplace_back(
        static_cast<std::byte*>(std::calloc(buffer.handle.bytes + kAlignment, 1)));
    std::byte* block = buffer.storage.back().get();
    if (block == nullptr) refuse(name, num_ranks_, elements, each, "out of memory");
    buffer.handle.at.push_back(aligned_within(block, buffer.handle.bytes));
  }
  std::lock_guard lock(mutex_);
  buffer.handle.id = next_id_++;
  int id = buffer.handle.id;
  buffers_.emplace(id, std::move(buffer));
  return id;
}

int SymmetricHeap::add_signals(const std::string& name, std::size_t count) {
  constexpr std::size_t kEach = sizeof(SignalCounter);
  if (count > kMaxBytes / kEach) refuse(name, num_ranks_, count, kEach, "size overflows");
  Signals signals;
  signals.handle = {.name = name, .count = count};
  for (int r = 0; r < num_ranks_; ++r) {
    try {
      signals.storage.push_back(std::make_unique<SignalCounter[]>(count));
    } catch (const std::bad_alloc&) {
      refuse(name, num_ranks_, count, kEach, "out of memory");
    }
    signals.handle.at.push_back(signals.storage.back().get());
  }
  std::lock_guard lock(mutex_);
  signals.handle.id = next_id_++;
  int id = signals.handle.id;
  signals_.emplace(id, std::move(signals));
  return id;
}

SymmetricBuffer SymmetricHeap::buffer(int id) const {
  std::lock_guard lock(mutex_);
  return buffers_.at(id).handle;
}

SignalBlock SymmetricHeap::signals(int id) const {
  std::lock_guard lock(mutex_);
  return signals_.at(id).handle;
}

template <typename Block>
void SymmetricHeap::release(std::map<int, Block>& blocks, int id, int rank) {
  if (id < 0) return;
  std::uint64_t bit = std::uint64_t{1} << rank;
  std::uint64_t all = ~std::uint64_t{0} >> (64 - num_ranks_);
  Block last;  // freed after the lock is given back
  std::lock_guard lock(mutex_);
  auto found = blocks.find(id);
  if (found == blocks.end() || (found->second.released & bit) != 0) {
    throw UserError(
        fmt::format("symmetric allocation {}: rank {} has already released it", id, rank));
  }
  found->second.released |= bit;
  if (found->second.released != all) return;
  last = std::move(found->second);
  blocks.erase(found);
}

void SymmetricHeap::release_buffer(int id, int rank) { release(buffers_, id, rank); }
void SymmetricHeap::release_signals(int id, int rank) { release(signals_, id, rank); }

void SymmetricHeap::zero_signals() {
  std::lock_guard lock(mutex_);
  for (auto& [id, block] : signals_) {
    for (SignalCounter* counters : block.handle.at) {
      for (std::size_t i = 0; i < block.handle.count; ++i) {
        counters[i].value.store(0, std::memory_order_relaxed);
      }
    }
  }
}

}  // namespace stretto
