// The vocabulary as a trie over the bytes of its tokens, in one array in the order of a walk: a
// subtree that an automaton refuses is left by one jump.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stretto::grammar {

class TokenTrie {
 public:
  struct Node {
    std::uint32_t end = 0;    // the first node behind its subtree
    std::int32_t token = -1;  // that ends here; others with the same bytes by same_as()
    std::uint16_t depth = 0;  // bytes from the root
    std::uint8_t byte = 0;

    bool has_children(std::uint32_t self) const { return end > self + 1; }
  };

  // By id; empty texts have no place in it.
  explicit TokenTrie(const std::vector<std::string>& tokens);

  // The first is the root, whose byte means nothing.
  const std::vector<Node>& nodes() const { return nodes_; }
  // Another token with the bytes of this one, or -1.
  int same_as(int token) const { return same_as_[static_cast<std::size_t>(token)]; }
  int most_depth() const { return most_depth_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int> same_as_;
  int most_depth_ = 0;
};

}  // namespace stretto::grammar
