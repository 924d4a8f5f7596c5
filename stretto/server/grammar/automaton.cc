#include <algorithm>
#include <set>

#include "stretto/server/grammar/grammar.h"

namespace stretto::grammar {
namespace {

constexpr std::size_t kMostWays = 4096;  // of a state
constexpr int kMostOnStack = 4000;       // of a stack
constexpr std::size_t kMostStates = 20'000, kMostSteps = 200'000, kMostPositions = 50'000;
constexpr std::size_t kMostMaskBytes = std::size_t{8} << 20;
constexpr int kNotOpened = -2;

std::size_t mixed(std::size_t hash, int x) {
  return (hash ^ static_cast<std::size_t>(x)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

}  // namespace

std::size_t Automaton::Hash::operator()(const std::pair<std::vector<Way>, bool>& key) const {
  std::size_t hash = key.second ? 3 : 5;
  for (const Way& w : key.first) hash = mixed(mixed(mixed(hash, w.terminal), w.state), w.then);
  return hash;
}

std::size_t Automaton::Hash::operator()(const Position& position) const {
  return mixed(mixed(7, position.node), position.below);
}

Automaton::Automaton(std::shared_ptr<const Network> network, const Vocabulary& vocabulary)
    : network_(std::move(network)), vocabulary_(vocabulary) {
  path_.resize(static_cast<std::size_t>(vocabulary.trie().most_depth()) + 1);
  positions_.push_back({-1, -1});  // after which nothing comes
  depth_.push_back(0);
  opened_.push_back(kNotOpened);
  State state;
  open(network_->root().start, 0, state);
  start_ = number(std::move(state));
}

bool Automaton::is_full() const {
  return states_.size() > kMostStates || steps_.size() > kMostSteps ||
         positions_.size() > kMostPositions;
}

int Automaton::position(int node, int below) {
  // At the end of a rule one goes on below at once: what calls itself last needs no stack.
  if (network_->is_end(node) && network_->edges(node).empty()) return below;
  auto [at, is_new] = position_of_.try_emplace({node, below}, static_cast<int>(positions_.size()));
  if (is_new) {
    const int depth = depth_[static_cast<std::size_t>(below)] + 1;
    if (depth > kMostOnStack) throw GrammarError("the answer nests too deeply for its grammar");
    positions_.push_back({node, below});
    depth_.push_back(depth);
    opened_.push_back(kNotOpened);
  }
  return at->second;
}

int Automaton::opened(int position) {
  int known = opened_[static_cast<std::size_t>(position)];
  if (known != kNotOpened) return known;
  State state;
  const Position its = positions_[static_cast<std::size_t>(position)];
  if (position == 0) {
    state.may_end = true;
  } else {
    open(its.node, its.below, state);
  }
  known = number(std::move(state));
  opened_[static_cast<std::size_t>(position)] = known;
  return known;
}

// All ways that begin at a node.
void Automaton::open(int first_node, int first_below, State& out) {
  std::vector<std::pair<int, int>> open = {{first_node, first_below}};
  std::set<std::pair<int, int>> seen;
  while (!open.empty()) {
    const auto [node, below] = open.back();
    open.pop_back();
    if (!seen.insert({node, below}).second) continue;
    if (seen.size() > 4 * kMostWays) throw GrammarError("the grammar has too many ways to go on");
    if (network_->is_end(node)) {
      if (below == 0) {
        out.may_end = true;
      } else {
        const Position up = positions_[static_cast<std::size_t>(below)];
        open.emplace_back(up.node, up.below);
      }
    }
    for (const Network::Edge& edge : network_->edges(node)) {
      switch (edge.kind) {
        case Network::Edge::Kind::kFree:
          open.emplace_back(edge.target, below);
          break;
        case Network::Edge::Kind::kRule:
          open.emplace_back(network_->rule(edge.what).start, position(edge.target, below));
          break;
        case Network::Edge::Kind::kTerminal: {
          const Dfa& dfa = network_->terminal(edge.what)->dfa();
          if (dfa.accepts[static_cast<std::size_t>(dfa.start)]) {
            open.emplace_back(edge.target, below);
          }
          if (dfa.goes_on[static_cast<std::size_t>(dfa.start)]) {
            out.ways.push_back({edge.what, dfa.start, position(edge.target, below)});
          }
        }
      }
    }
  }
}

int Automaton::number(State state) {
  std::sort(state.ways.begin(), state.ways.end());
  state.ways.erase(std::unique(state.ways.begin(), state.ways.end()), state.ways.end());
  if (state.ways.size() > kMostWays) throw GrammarError("the grammar has too many ways to go on");
  if (state.ways.empty() && !state.may_end) return kDead;
  auto [at, is_new] =
      state_of_.try_emplace({state.ways, state.may_end}, static_cast<int>(states_.size()));
  if (is_new) states_.push_back(std::move(state));
  return at->second;
}

int Automaton::step(int from, std::uint8_t byte) {
  const std::uint64_t key = static_cast<std::uint64_t>(from) << 8 | byte;
  if (auto known = steps_.find(key); known != steps_.end()) return known->second;
  State next;
  const std::vector<Way> ways = at(from).ways;
  for (const Way& way : ways) {
    const Dfa& dfa = network_->terminal(way.terminal)->dfa();
    const int to = dfa.step(way.state, byte);
    if (to < 0) continue;
    if (dfa.goes_on[static_cast<std::size_t>(to)])
      next.ways.push_back({way.terminal, to, way.then});
    if (!dfa.accepts[static_cast<std::size_t>(to)]) continue;
    const int after = opened(way.then);
    if (after == kDead) continue;
    const State& more = at(after);
    next.ways.insert(next.ways.end(), more.ways.begin(), more.ways.end());
    next.may_end |= more.may_end;
    if (next.ways.size() > 4 * kMostWays) {
      throw GrammarError("the grammar has too many ways to go on");
    }
  }
  const int to = number(std::move(next));
  steps_.emplace(key, to);
  return to;
}

const ByteSet& Automaton::first(int state) {
  State& its = at(state);
  if (its.has_first) return its.first;
  for (const Way& way : its.ways) {
    const Dfa& dfa = network_->terminal(way.terminal)->dfa();
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (dfa.step(way.state, static_cast<std::uint8_t>(byte)) >= 0) its.first.set(byte);
    }
  }
  its.has_first = true;
  return its.first;
}

// Tokens below a node of the trie at which the automaton is in `state`.
void Automaton::add_subtree(std::uint32_t root, int state, Bits& bits) {
  const std::vector<TokenTrie::Node>& nodes = vocabulary_.trie().nodes();
  path_[nodes[root].depth] = state;
  for (std::uint32_t i = root + 1; i < nodes[root].end;) {
    const TokenTrie::Node& node = nodes[i];
    const int from = path_[node.depth - 1u];
    const int to = first(from)[node.byte] ? step(from, node.byte) : kDead;
    if (to == kDead) {
      i = node.end;
      continue;
    }
    path_[node.depth] = to;
    for (int token = node.token; token >= 0; token = vocabulary_.trie().same_as(token)) {
      bits[static_cast<std::size_t>(token) / 32] |= 1u << (token % 32);
    }
    ++i;
  }
}

std::shared_ptr<const Bits> Automaton::tokens(int state) {
  if (at(state).tokens) return at(state).tokens;
  auto bits = std::make_shared<Bits>(vocabulary_.num_words());
  const std::vector<Way> ways = at(state).ways;
  std::set<std::pair<const FittingTokens*, int>> done;
  for (const Way& way : ways) {
    auto fitting = vocabulary_.fitting(network_->terminal(way.terminal), way.state);
    if (!done.insert({fitting.get(), way.then}).second) continue;
    fitting->add_to(*bits);
    if (fitting->exits.empty()) continue;
    const int after = opened(way.then);
    if (after == kDead || !goes_on(after)) continue;
    for (std::uint32_t exit : fitting->exits) add_subtree(exit, after, *bits);
  }
  masks_ += 4 * bits->size();
  if (masks_ > kMostMaskBytes) {
    for (State& other : states_) other.tokens.reset();
    masks_ = 4 * bits->size();
  }
  at(state).tokens = bits;
  return bits;
}

std::shared_ptr<const Bits> Automaton::tokens_after_space(int state) {
  auto bits = std::make_shared<Bits>(*tokens(state));
  const TokenTrie& trie = vocabulary_.trie();
  for (std::uint32_t i = 1; i < trie.nodes().size(); i = trie.nodes()[i].end) {
    if (trie.nodes()[i].byte != ' ') continue;
    // What the automaton says of tokens that begin with a space counts for what follows it.
    for (std::uint32_t n = i; n < trie.nodes()[i].end; ++n) {
      for (int t = trie.nodes()[n].token; t >= 0; t = trie.same_as(t)) {
        (*bits)[static_cast<std::size_t>(t) / 32] &= ~(1u << (t % 32));
      }
    }
    add_subtree(i, state, *bits);
  }
  return bits;
}

}  // namespace stretto::grammar
