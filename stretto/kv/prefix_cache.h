// Finds blocks of keys and values by the tokens that they were computed from, from the first token
// of a sequence on: requests that begin alike share them. A block hangs on the one before it and is
// found by the hash of its tokens, but counts only where the tokens themselves are equal, and so
// is every block before it: no hash decides what a request is answered from.
//
// Before: block_pool.h. After: engine/scheduler.h. Host only; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stretto/kv/block_pool.h"

namespace stretto {

class PrefixCache {
 public:
  // Of full blocks of `block_tokens`; becomes the one that `pool` tells of what it evicts.
  PrefixCache(BlockPool& pool, int block_tokens);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The blocks of the longest prefix of `tokens` that is there, each with a reference more. Only
  // what was published with the same salt.
  std::vector<int> find(std::span<const int> tokens, std::string_view salt);

  // `block` is full and has a reference; it holds `tokens`, which follow those of block `before`
  // (negative: none, the sequence begins with them). Where the same content is there already, the
  // caller's reference moves over to the block that has it, which is returned; else `block` is.
  int publish(int block, int before, std::span<const int> tokens, std::string_view salt);

  std::size_t num_entries() const { return entries_.size(); }

 private:
  // Of a content, never given twice; 0: the beginning of a sequence.
  using ContentId = std::uint64_t;
  struct Entry {
    ContentId id = 0, parent = 0;
    std::uint64_t key = 0;
    std::vector<int> tokens;
    std::string salt;  // of the first block of a sequence; the others hang on it
  };

  std::uint64_t key_of(ContentId parent, std::span<const int> tokens, std::string_view salt) const;
  // Negative: none.
  int lookup(ContentId parent, std::span<const int> tokens, std::string_view salt) const;
  void forget(int block);

  BlockPool& pool_;
  std::size_t block_tokens_;
  ContentId last_id_ = 0;
  std::unordered_map<int, Entry> entries_;              // by block
  std::unordered_multimap<std::uint64_t, int> by_key_;  // blocks
};

}  // namespace stretto
