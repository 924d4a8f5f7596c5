// What all grammars of a server share: the bytes of its model's tokens, and the automatons of
// regular parts with the tokens that fit each of their states. JSON strings are the same in every
// schema, so their tokens are looked for once.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stretto/server/grammar/dfa.h"
#include "stretto/server/grammar/token_trie.h"

namespace stretto::grammar {

// Bits of tokens, as TokenConstraint has them.
using Bits = std::vector<std::uint32_t>;

// Around the name of a special token in the trie, where no text has this byte: users' grammars
// cannot ask for one, and tool calls can.
inline constexpr char kSpecialMark = '\xFF';
std::string special_text(std::string_view name);

// The tokens that fit a state of a terminal.
struct FittingTokens {
  std::vector<int> few;  // or, where they are many, ...
  Bits many;             // ... their bits
  // Nodes of the trie, with children, at which the terminal may end.
  std::vector<std::uint32_t> exits;

  void add_to(Bits& bits) const;
  std::size_t bytes() const;
};

class Terminal {
 public:
  explicit Terminal(Dfa dfa) : dfa_(std::move(dfa)), fitting_(dfa_.accepts.size()) {}
  const Dfa& dfa() const { return dfa_; }

 private:
  friend class Vocabulary;
  Dfa dfa_;
  std::vector<std::shared_ptr<const FittingTokens>> fitting_;  // by state; null: not looked for
  std::vector<int> looked_;                                    // states that were
};

struct VocabularyOptions {
  std::size_t most_bytes = std::size_t{64} << 20;  // of the tokens of terminals
  std::size_t most_terminals = 4096;               // that are kept for other grammars
};

class Vocabulary {
 public:
  // `tokens` are the bytes of each id, empty for those that stand for no text. `size` is that of
  // the logits.
  Vocabulary(std::vector<std::string> tokens, int size, bool strips_first_space = false,
             const VocabularyOptions& options = {});

  const TokenTrie& trie() const { return trie_; }
  int size() const { return size_; }
  std::size_t num_words() const { return (static_cast<std::size_t>(size_) + 31) / 32; }
  std::string_view token(int id) const { return tokens_[static_cast<std::size_t>(id)]; }
  // A space at the very beginning of an answer is not told.
  bool strips_first_space() const { return strips_first_space_; }

  // The same expression gives the same one while it is kept. GrammarError as make_dfa.
  std::shared_ptr<Terminal> terminal(const Expr& expr, int most_states, Budget& budget) const;
  std::shared_ptr<const FittingTokens> fitting(const std::shared_ptr<Terminal>& terminal,
                                               int state) const;

 private:
  std::shared_ptr<const FittingTokens> look(const Dfa& dfa, int state) const;
  // Those of a state that no token tells from this one; null where none is known.
  std::shared_ptr<const FittingTokens> alike(const Terminal& terminal, int state) const;

  std::vector<std::string> tokens_;
  int size_;
  bool strips_first_space_;
  VocabularyOptions options_;
  TokenTrie trie_;

  mutable std::mutex mutex_;
  using Kept = std::pair<std::string, std::shared_ptr<Terminal>>;
  mutable std::list<Kept> terminals_;  // the last used first
  mutable std::unordered_map<std::string_view, std::list<Kept>::iterator> terminal_of_;
  // Whose tokens are held, to be evicted together where they are too many.
  mutable std::vector<std::pair<std::weak_ptr<Terminal>, int>> held_;
  mutable std::size_t held_bytes_ = 0;
};

}  // namespace stretto::grammar
