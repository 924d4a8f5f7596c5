#include "stretto/server/grammar/vocabulary.h"

#include <utility>

namespace stretto::grammar {
namespace {

std::vector<std::string> cut(std::vector<std::string> tokens, int size) {
  tokens.resize(static_cast<std::size_t>(size));  // the logits of others stand for nothing
  return tokens;
}

}  // namespace

std::string special_text(std::string_view name) {
  std::string out(1, kSpecialMark);
  out += name;
  out += kSpecialMark;
  return out;
}

void FittingTokens::add_to(Bits& bits) const {
  for (int token : few) bits[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
  for (std::size_t i = 0; i < many.size(); ++i) bits[i] |= many[i];
}

std::size_t FittingTokens::bytes() const {
  return sizeof(*this) + 4 * (few.capacity() + many.capacity() + exits.capacity());
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, int size, bool strips_first_space,
                       const VocabularyOptions& options)
    : tokens_(cut(std::move(tokens), size)),
      size_(size),
      strips_first_space_(strips_first_space),
      options_(options),
      trie_(tokens_) {}

std::shared_ptr<Terminal> Vocabulary::terminal(const Expr& expr, int most_states,
                                               Budget& budget) const {
  std::string key = std::to_string(most_states) + spelling(expr);
  budget.spend(static_cast<std::int64_t>(key.size()) / 8);
  {
    std::lock_guard lock(mutex_);
    auto at = terminal_of_.find(key);
    if (at != terminal_of_.end()) {
      terminals_.splice(terminals_.begin(), terminals_, at->second);
      return at->second->second;
    }
  }
  auto made = std::make_shared<Terminal>(make_dfa(expr, most_states, budget));
  std::lock_guard lock(mutex_);
  // Large ones are seldom asked for twice.
  constexpr std::size_t kLargeKey = 4096;
  constexpr int kManyStates = 512;
  if (key.size() > kLargeKey || made->dfa().num_states() > kManyStates) return made;
  auto at = terminal_of_.find(key);
  if (at != terminal_of_.end()) return at->second->second;
  terminals_.emplace_front(std::move(key), made);
  terminal_of_.emplace(terminals_.front().first, terminals_.begin());
  if (terminals_.size() > options_.most_terminals) {
    terminal_of_.erase(terminals_.back().first);
    terminals_.pop_back();
  }
  return made;
}

std::shared_ptr<const FittingTokens> Vocabulary::fitting(const std::shared_ptr<Terminal>& terminal,
                                                         int state) const {
  std::lock_guard lock(mutex_);
  const auto at = static_cast<std::size_t>(state);
  if (terminal->fitting_[at]) return terminal->fitting_[at];
  auto found = look(terminal->dfa(), state);
  if (held_bytes_ + found->bytes() > options_.most_bytes) {
    for (const auto& [holder, its_state] : held_) {
      if (auto held = holder.lock()) held->fitting_[static_cast<std::size_t>(its_state)].reset();
    }
    held_.clear();
    held_bytes_ = 0;
  }
  held_bytes_ += found->bytes();
  held_.emplace_back(terminal, state);
  terminal->fitting_[at] = found;
  return found;
}

std::shared_ptr<const FittingTokens> Vocabulary::look(const Dfa& dfa, int state) const {
  auto out = std::make_shared<FittingTokens>();
  const std::vector<TokenTrie::Node>& nodes = trie_.nodes();
  std::vector<int> at(static_cast<std::size_t>(trie_.most_depth()) + 1, -1);
  at[0] = state;
  for (std::uint32_t i = 1; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const int to = dfa.step(at[node.depth - 1u], node.byte);
    if (to < 0) {
      i = node.end;
      continue;
    }
    at[node.depth] = to;
    for (int token = node.token; token >= 0; token = trie_.same_as(token)) {
      out->few.push_back(token);
    }
    const bool accepts = dfa.accepts[static_cast<std::size_t>(to)] != 0;
    if (accepts && node.has_children(i)) out->exits.push_back(i);
    i = dfa.goes_on[static_cast<std::size_t>(to)] != 0 ? i + 1 : node.end;
  }
  if (out->few.size() > num_words()) {
    out->many.resize(num_words());
    for (int token : std::exchange(out->few, {})) {
      out->many[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    }
  }
  out->few.shrink_to_fit();
  out->exits.shrink_to_fit();
  return out;
}

}  // namespace stretto::grammar
