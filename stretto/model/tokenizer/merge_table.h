// The merges of a BPE model by pair of token ids: open addressing, one cache line per look-up in
// the common case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stretto::tokenization {

struct Merge {
  std::uint32_t rank;  // position in the list of merges; the lowest goes first
  int merged;          // id of the token that the pair becomes
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges);

  void insert(int left, int right, Merge merge);  // the last merge of a pair wins
  const Merge* find(int left, int right) const;   // null when the pair does not merge

 private:
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge{};
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  static std::uint64_t key_of(int left, int right);
  std::size_t slot_of(std::uint64_t key) const;

  std::vector<Slot> slots_;  // a power of two of them, at most half in use
};

}  // namespace stretto::tokenization
