// A grammar as an automaton: rules as networks whose edges are terminals and other rules, and at
// run time the set of all ways in which the text so far can stand in them. A way is a terminal's
// state with a stack of positions to go on at; sets of ways become numbers, and what a byte does to
// a set is found once. After expr.h; constraint.h runs it for a request.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "stretto/server/grammar/vocabulary.h"

namespace stretto::grammar {

// The networks. Immutable.
class Network {
 public:
  struct Edge {
    enum class Kind : std::uint8_t { kFree, kTerminal, kRule };
    Kind kind = Kind::kFree;
    int what = -1;  // terminal or rule
    int target = -1;
  };
  struct Rule {
    int start = -1, end = -1;
  };

  // GrammarError for rules that begin with themselves, for a root that matches no text, and as
  // Budget.
  Network(const Rules& rules, const Vocabulary& vocabulary, Budget& budget);

  const std::vector<Edge>& edges(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  const Rule& rule(int index) const { return rules_[static_cast<std::size_t>(index)]; }
  const Rule& root() const { return rule(root_); }
  const std::shared_ptr<Terminal>& terminal(int index) const {
    return terminals_[static_cast<std::size_t>(index)];
  }
  bool is_end(int node) const { return is_end_[static_cast<std::size_t>(node)] != 0; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  std::size_t bytes() const { return bytes_; }

 private:
  class Builder;

  void take_out_dead_ends(Budget& budget);
  void check_beginnings(Budget& budget) const;
  void shorten(Budget& budget);

  int root_;
  std::vector<std::vector<Edge>> nodes_;
  std::vector<std::uint8_t> is_end_;  // of a rule
  std::vector<Rule> rules_;
  std::vector<std::shared_ptr<Terminal>> terminals_;
  std::size_t bytes_ = 0;
};

// What was found out about a network while texts went through it. Used by one thread at a time,
// under its mutex.
class Automaton {
 public:
  Automaton(std::shared_ptr<const Network> network, const Vocabulary& vocabulary);

  static constexpr int kDead = -1;
  int start() const { return start_; }
  // kDead where no text of the grammar goes on so. GrammarError where there are too many ways.
  int step(int state, std::uint8_t byte);
  bool may_end(int state) const { return at(state).may_end; }
  bool goes_on(int state) const { return !at(state).ways.empty(); }
  // The tokens that may follow.
  std::shared_ptr<const Bits> tokens(int state);
  // The same of tokens whose first byte, a space, is not told.
  std::shared_ptr<const Bits> tokens_after_space(int state);
  // It has grown to its limit; whoever goes on makes a new one and begins again.
  bool is_full() const;

  std::mutex& mutex() { return mutex_; }

 private:
  struct Way {
    int terminal, state, then;  // `then` is a position
    auto operator<=>(const Way&) const = default;
  };
  struct Position {
    int node, below;  // a node of the network; the position after its rule, 0 for none
    auto operator<=>(const Position&) const = default;
  };
  struct State {
    std::vector<Way> ways;  // sorted
    bool may_end = false;
    bool has_first = false;
    ByteSet first;  // bytes that may follow
    std::shared_ptr<const Bits> tokens;
  };
  struct Hash {
    std::size_t operator()(const std::pair<std::vector<Way>, bool>& key) const;
    std::size_t operator()(const Position& position) const;
  };

  State& at(int state) { return states_[static_cast<std::size_t>(state)]; }
  const State& at(int state) const { return states_[static_cast<std::size_t>(state)]; }
  int position(int node, int below);
  // The state that a text is in after which `position` comes.
  int opened(int position);
  void open(int node, int below, State& out);
  int number(State state);
  const ByteSet& first(int state);
  void add_subtree(std::uint32_t node, int state, Bits& bits);

  std::shared_ptr<const Network> network_;
  const Vocabulary& vocabulary_;
  std::mutex mutex_;
  std::vector<State> states_;
  std::unordered_map<std::pair<std::vector<Way>, bool>, int, Hash> state_of_;
  std::vector<Position> positions_;
  std::vector<int> depth_;   // of positions
  std::vector<int> opened_;  // state by position, or -2
  std::unordered_map<Position, int, Hash> position_of_;
  std::unordered_map<std::uint64_t, int> steps_;  // state, byte
  std::vector<int> path_;                         // scratch of add_subtree()
  std::size_t masks_ = 0;
  int start_;
};

}  // namespace stretto::grammar
