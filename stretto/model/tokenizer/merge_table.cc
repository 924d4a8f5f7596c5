#include "stretto/model/tokenizer/merge_table.h"

#include <bit>

namespace stretto::tokenization {

MergeTable::MergeTable(std::size_t num_merges) : slots_(std::bit_ceil(2 * num_merges + 2)) {}

std::uint64_t MergeTable::key_of(int left, int right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  std::size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].key != key && slots_[slot].key != kFree)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::insert(int left, int right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, merge};
}

const Merge* MergeTable::find(int left, int right) const {
  const std::uint64_t key = key_of(left, right);
  const Slot& slot = slots_[slot_of(key)];
  return slot.key == key ? &slot.merge : nullptr;
}

}  // namespace stretto::tokenization
