#include "stretto/executor/kernels/packet.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "stretto/base/errors.h"

namespace stretto::kernels {
namespace {

using Word = std::atomic_ref<std::uint64_t>;
static_assert(Word::is_always_lock_free, "a packet word is one machine store");

void check_aligned(const std::uint64_t* words) {
  STRETTO_CHECK(reinterpret_cast<std::uintptr_t>(words) % Word::required_alignment == 0,
                "packet words are not aligned");
}

}  // namespace

void store_packets(std::uint64_t* dst, std::span<const std::byte> payload, std::uint32_t tag) {
  check_aligned(dst);
  for (std::size_t at = 0; at < payload.size(); at += 4) {
    std::uint32_t data = 0;
    std::memcpy(&data, payload.data() + at, std::min<std::size_t>(4, payload.size() - at));
    Word(dst[at / 4]).store(std::uint64_t{tag} << 32 | data, std::memory_order_release);
  }
}

bool try_load_packets(const std::uint64_t* src, std::span<std::byte> payload, std::uint32_t tag) {
  check_aligned(src);
  for (std::size_t at = 0; at < payload.size(); at += 4) {
    // atomic_ref of a const object is C++26; the load does not write.
    std::uint64_t word =
        Word(const_cast<std::uint64_t&>(src[at / 4])).load(std::memory_order_acquire);
    if (word >> 32 != tag) return false;
    auto data = static_cast<std::uint32_t>(word);
    std::memcpy(payload.data() + at, &data, std::min<std::size_t>(4, payload.size() - at));
  }
  return true;
}

}  // namespace stretto::kernels
