#include "stretto/gpu/issue_order.h"

namespace stretto {
namespace {

constexpr std::uint32_t kInstances = 1u << 24;

std::uint32_t place_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

}  // namespace

IssueOrder::IssueOrder(int num_ranks)
    : ranks_(static_cast<std::size_t>(num_ranks)), places_(std::make_unique<Places>()) {
  clear();
}

void IssueOrder::clear() {
  for (Rank& r : ranks_) r.launches = 0;
  // As if everyone had passed the window before the first place.
  for (std::uint32_t i = 0; i < kWindow; ++i) {
    (*places_)[i].store(std::uint64_t{i - kWindow} << 32, std::memory_order_relaxed);
  }
}

std::optional<IssueOrder::Clash> IssueOrder::launch(int rank, int instance) {
  std::uint32_t& place = ranks_[static_cast<std::size_t>(rank)].launches;
  std::uint32_t own = static_cast<std::uint32_t>(instance) % kInstances;
  std::atomic<std::uint64_t>& at = (*places_)[place % kWindow];
  std::uint64_t mine = std::uint64_t{place} << 32 | own << 8 | static_cast<std::uint32_t>(rank);
  std::uint64_t seen = at.load(std::memory_order_acquire);
  // The place comes round again: an older one is taken, a newer one left.
  while (static_cast<std::int32_t>(place_of(seen) - place) < 0) {
    if (at.compare_exchange_weak(seen, mine, std::memory_order_acq_rel)) seen = mine;
  }
  if (place_of(seen) == place) {
    std::uint32_t theirs = static_cast<std::uint32_t>(seen) >> 8;
    if (theirs != own) {
      return Clash{static_cast<int>(seen & 0xff), static_cast<int>(theirs), place};
    }
  }
  ++place;
  return std::nullopt;
}

}  // namespace stretto
