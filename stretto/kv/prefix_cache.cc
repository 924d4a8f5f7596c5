#include "stretto/kv/prefix_cache.h"

#include <algorithm>
#include <functional>

#include "stretto/base/errors.h"

namespace stretto {

PrefixCache::PrefixCache(BlockPool& pool, int block_tokens)
    : pool_(pool), block_tokens_(static_cast<std::size_t>(block_tokens)) {
  STRETTO_CHECK(block_tokens > 0, "blocks of no tokens");
  pool_.on_forget([this](int block) { forget(block); });
}

std::uint64_t PrefixCache::key_of(ContentId parent, std::span<const int> tokens,
                                  std::string_view salt) const {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15;
  std::uint64_t key = (parent + 1) * kPrime;
  for (int token : tokens) {
    key = (key ^ static_cast<std::uint32_t>(token)) * kPrime;
    key ^= key >> 29;
  }
  return parent == 0 ? key ^ std::hash<std::string_view>{}(salt) : key;
}

int PrefixCache::lookup(ContentId parent, std::span<const int> tokens,
                        std::string_view salt) const {
  auto [first, last] = by_key_.equal_range(key_of(parent, tokens, salt));
  for (auto at = first; at != last; ++at) {
    const Entry& e = entries_.at(at->second);
    if (e.parent == parent && std::ranges::equal(e.tokens, tokens) &&
        (parent != 0 || e.salt == salt)) {
      return at->second;
    }
  }
  return -1;
}

std::vector<int> PrefixCache::find(std::span<const int> tokens, std::string_view salt) {
  std::vector<int> blocks;
  ContentId parent = 0;
  for (; tokens.size() >= block_tokens_; tokens = tokens.subspan(block_tokens_)) {
    int block = lookup(parent, tokens.first(block_tokens_), salt);
    if (block < 0) break;
    pool_.add_reference(block);
    blocks.push_back(block);
    parent = entries_.at(block).id;
  }
  return blocks;
}

int PrefixCache::publish(int block, int before, std::span<const int> tokens,
                         std::string_view salt) {
  STRETTO_CHECK(tokens.size() == block_tokens_, "a block is published that is not full");
  STRETTO_CHECK(!entries_.contains(block), "a block is published twice");
  ContentId parent = 0;
  if (before >= 0) {
    auto at = entries_.find(before);
    STRETTO_CHECK(at != entries_.end(), "a block is published after one that is not");
    parent = at->second.id;
  }
  if (int same = lookup(parent, tokens, salt); same >= 0) {
    pool_.add_reference(same);
    pool_.release(block);
    return same;
  }
  pool_.keep(block);
  Entry entry{.id = ++last_id_,
              .parent = parent,
              .key = key_of(parent, tokens, salt),
              .tokens = {tokens.begin(), tokens.end()},
              .salt = parent == 0 ? std::string(salt) : std::string()};
  by_key_.emplace(entry.key, block);
  entries_.emplace(block, std::move(entry));
  return block;
}

void PrefixCache::forget(int block) {
  auto at = entries_.find(block);
  STRETTO_CHECK(at != entries_.end(), "a block is evicted that is not in the cache");
  auto [first, last] = by_key_.equal_range(at->second.key);
  by_key_.erase(std::find_if(first, last, [&](const auto& e) { return e.second == block; }));
  entries_.erase(at);
}

}  // namespace stretto
