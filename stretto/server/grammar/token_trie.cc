#include "stretto/server/grammar/token_trie.h"

#include <algorithm>
#include <numeric>

namespace stretto::grammar {

TokenTrie::TokenTrie(const std::vector<std::string>& tokens) : same_as_(tokens.size(), -1) {
  std::vector<int> order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  auto text = [&](int id) -> const std::string& { return tokens[static_cast<std::size_t>(id)]; };
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const int by_text = text(a).compare(text(b));
    return by_text != 0 ? by_text < 0 : a < b;
  });
  nodes_.emplace_back();
  std::vector<std::uint32_t> path = {0};  // nodes from the root to the last token
  auto leave = [&](std::size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
    }
  };
  const std::string* last = nullptr;
  constexpr std::size_t kLongest = 0xFFFF;
  for (int id : order) {
    const std::string& bytes = text(id);
    if (bytes.empty() || bytes.size() > kLongest) continue;
    if (last != nullptr && *last == bytes) {
      int& first = nodes_[path.back()].token;
      same_as_[static_cast<std::size_t>(id)] = first;
      first = id;
      continue;
    }
    std::size_t common = 0;
    while (last != nullptr && common < std::min(bytes.size(), last->size()) &&
           bytes[common] == (*last)[common]) {
      ++common;
    }
    leave(common);
    for (std::size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({.depth = static_cast<std::uint16_t>(i + 1),
                        .byte = static_cast<std::uint8_t>(bytes[i])});
    }
    nodes_[path.back()].token = id;
    most_depth_ = std::max(most_depth_, static_cast<int>(bytes.size()));
    last = &bytes;
  }
  leave(0);
  nodes_.front().end = static_cast<std::uint32_t>(nodes_.size());
}

}  // namespace stretto::grammar
