#include "stretto/server/grammar/vocabulary.h"

#include <algorithm>
#include <set>
#include <utility>

namespace stretto::grammar {
namespace {

std::vector<std::string> cut(std::vector<std::string> tokens, int size) {
  tokens.resize(static_cast<std::size_t>(size));  // the logits of others stand for nothing
  return tokens;
}

// Whether no text of up to so many bytes tells two states apart.
bool are_alike(const Dfa& dfa, int first, int second, int most_bytes) {
  constexpr std::size_t kMostPairs = 4000;
  std::vector<std::pair<int, int>> level = {{first, second}}, next;
  std::set<std::pair<int, int>> seen;
  for (int depth = 0; depth < most_bytes && !level.empty(); ++depth) {
    for (const auto& [a, b] : level) {
      for (int c = 0; c < dfa.num_classes; ++c) {
        const int to_a = dfa.next[static_cast<std::size_t>(a * dfa.num_classes + c)];
        const int to_b = dfa.next[static_cast<std::size_t>(b * dfa.num_classes + c)];
        if (to_a == to_b) continue;
        if (to_a < 0 || to_b < 0) return false;
        if (dfa.accepts[static_cast<std::size_t>(to_a)] !=
            dfa.accepts[static_cast<std::size_t>(to_b)]) {
          return false;
        }
        if (seen.insert({to_a, to_b}).second) next.emplace_back(to_a, to_b);
      }
    }
    if (seen.size() > kMostPairs) return false;
    level.swap(next);
    next.clear();
  }
  return true;
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
  if (auto known = alike(*terminal, state)) {
    held_.emplace_back(terminal, state);
    return terminal->fitting_[at] = known;
  }
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
  terminal->looked_.push_back(state);
  return found;
}

// In a string with a limit all states far from it are.
std::shared_ptr<const FittingTokens> Vocabulary::alike(const Terminal& terminal, int state) const {
  constexpr std::size_t kMostTries = 4;
  const std::vector<int>& looked = terminal.looked_;
  for (std::size_t i = 0; i < std::min(kMostTries, looked.size()); ++i) {
    const int other = looked[looked.size() - 1 - i];
    const auto& known = terminal.fitting_[static_cast<std::size_t>(other)];
    if (known && are_alike(terminal.dfa(), state, other, trie_.most_depth())) return known;
  }
  return nullptr;
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
