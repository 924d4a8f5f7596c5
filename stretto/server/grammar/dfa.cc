#include "stretto/server/grammar/dfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "stretto/base/secret_hash.h"

namespace stretto::grammar {
namespace {

// Thompson's automaton: states with edges over sets of bytes, or none.
class Nfa {
 public:
  struct State {
    std::vector<std::pair<int, int>> edges;  // a set of sets(), a state
    std::vector<int> free;                   // states, without a byte
  };

  Nfa(const Expr& expr, int most_states, Budget& budget)
      : most_states_(most_states), budget_(budget) {
    start_ = add();
    end_ = add_expr(expr, start_);
  }

  int start() const { return start_; }
  int end() const { return end_; }
  const std::vector<State>& states() const { return states_; }
  const std::vector<ByteSet>& sets() const { return sets_; }

 private:
  int add() {
    budget_.spend();
    if (static_cast<int>(states_.size()) >= budget_.limits().nodes) {
      throw GrammarError("the grammar is too large");
    }
    states_.emplace_back();
    return static_cast<int>(states_.size()) - 1;
  }
  void add_free(int from, int to) { states_[static_cast<std::size_t>(from)].free.push_back(to); }
  void add_edge(int from, const ByteSet& set, int to) {
    auto [at, is_new] = set_of_.try_emplace(set.to_string(), static_cast<int>(sets_.size()));
    if (is_new) sets_.push_back(set);
    states_[static_cast<std::size_t>(from)].edges.emplace_back(at->second, to);
  }
  int add_step(int from, const ByteSet& set) {
    const int to = add();
    add_edge(from, set, to);
    return to;
  }

  // The state after it.
  int add_expr(const Expr& expr, int from) {
    switch (expr.kind) {
      case Expr::Kind::kText:
        for (char c : expr.text) {
          from = add_step(from, ByteSet().set(static_cast<unsigned char>(c)));
        }
        return from;
      case Expr::Kind::kBytes:
        return add_step(from, expr.bytes);
      case Expr::Kind::kSequence:
        for (const ExprPtr& part : expr.parts) from = add_expr(*part, from);
        return from;
      case Expr::Kind::kChoice: {
        const int end = add();
        for (const ExprPtr& part : expr.parts) {
          const int begin = add();
          add_free(from, begin);
          add_free(add_expr(*part, begin), end);
        }
        return end;
      }
      case Expr::Kind::kRepeat:
        return add_repeat(expr, from);
      case Expr::Kind::kTerminal:
        return add_expr(*expr.parts.front(), from);
      case Expr::Kind::kBoth:
      case Expr::Kind::kButNot:
        return add_dfa(make_dfa(expr, most_states_, budget_), from);
      case Expr::Kind::kMultiple:
        return add_multiple(expr.min, expr.max, from);
      case Expr::Kind::kRule:
        break;
    }
    throw InternalError("a rule in a terminal");
  }

  int add_repeat(const Expr& expr, int from) {
    // What comes many times is made small first.
    constexpr int kMany = 16;
    const Expr& part = *expr.parts.front();
    std::optional<Dfa> small;
    if (std::max(expr.min, expr.max) > kMany) small = make_dfa(part, most_states_, budget_);
    auto add_part = [&](int at) { return small ? add_dfa(*small, at) : add_expr(part, at); };
    for (int i = 0; i < expr.min; ++i) from = add_part(from);
    if (expr.max < 0) {
      const int begin = add(), end = add();
      add_free(from, begin);
      add_free(add_part(begin), begin);
      add_free(begin, end);
      return end;
    }
    const int end = add();
    add_free(from, end);
    for (int i = expr.min; i < expr.max; ++i) {
      const int begin = add();
      add_free(from, begin);
      from = add_part(begin);
      add_free(from, end);
    }
    return end;
  }

  // A state for each remainder: of the digits before the point, right behind it, and of those with
  // as many places as count. Behind those only zeros may come.
  int add_multiple(int divisor, int places, int from) {
    std::vector<std::vector<int>> at(static_cast<std::size_t>(places) + 3);
    for (auto& level : at) {
      for (int r = 0; r < divisor; ++r) level.push_back(add());
    }
    const int end = add();
    add_free(from, at[0][0]);
    auto digit = [](int d) { return ByteSet().set(static_cast<std::size_t>('0' + d)); };
    auto after = [&](std::int64_t r, int d) {
      return static_cast<std::size_t>((r * 10 + d) % divisor);
    };
    for (std::size_t level = 0; level < at.size(); ++level) {
      budget_.spend(divisor);
      const int there = level < 2 ? 0 : static_cast<int>(level) - 1;  // digits behind the point
      for (int r = 0; r < divisor; ++r) {
        budget_.spend(10);
        const int state = at[level][static_cast<std::size_t>(r)];
        std::int64_t value = r;
        for (int i = there; i < places; ++i) value = value * 10 % divisor;
        if (level != 1 && value == 0) add_free(state, end);
        if (level == 0) add_edge(state, ByteSet().set('.'), at[1][static_cast<std::size_t>(r)]);
        const bool counts = level == 0 || there < places;
        for (int d = 0; d < (counts ? 10 : 1); ++d) {
          const std::size_t to = counts ? after(r, d) : static_cast<std::size_t>(r);
          add_edge(state, digit(d), at[level == 0 ? 0 : std::min(level + 1, at.size() - 1)][to]);
        }
      }
    }
    return end;
  }

  int add_dfa(const Dfa& dfa, int from) {
    const int end = add();
    if (dfa.start < 0) return end;
    std::vector<int> of;
    for (int s = 0; s < dfa.num_states(); ++s) {
      of.push_back(add());
      if (dfa.accepts[static_cast<std::size_t>(s)]) add_free(of.back(), end);
    }
    add_free(from, of[static_cast<std::size_t>(dfa.start)]);
    for (int s = 0; s < dfa.num_states(); ++s) {
      budget_.spend(20 + 5 * dfa.num_classes);
      std::map<int, ByteSet> to;
      for (unsigned byte = 0; byte < 256; ++byte) {
        const int next = dfa.step(s, static_cast<std::uint8_t>(byte));
        if (next >= 0) to[next].set(byte);
      }
      for (const auto& [next, set] : to) {
        add_edge(of[static_cast<std::size_t>(s)], set, of[static_cast<std::size_t>(next)]);
      }
    }
    return end;
  }

  int most_states_;
  Budget& budget_;
  std::vector<State> states_;
  std::vector<ByteSet> sets_;
  std::unordered_map<std::string, int> set_of_;
  int start_ = 0, end_ = 0;
};

// Bytes that no set tells apart are of one class.
void make_classes(const std::vector<ByteSet>& sets, Dfa& dfa, Budget& budget) {
  std::array<int, 256> of{};
  int count = 1;
  for (const ByteSet& set : sets) {
    budget.spend(10);
    std::array<std::array<int, 2>, 256> split;
    split.fill({-1, -1});
    count = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      int& now = split[static_cast<std::size_t>(of[byte])][set[byte] ? 1 : 0];
      if (now < 0) now = count++;
      of[byte] = now;
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    dfa.class_of[byte] = static_cast<std::uint8_t>(of[byte]);
  }
  dfa.num_classes = count;
}

struct KeyHash {
  std::size_t operator()(const std::vector<int>& key) const {
    SecretHash hash;
    for (int x : key) hash.add(static_cast<std::uint32_t>(x));
    return hash.value();
  }
};

// Numbers keys as they come; whoever made one looks at all of them in turn.
class States {
 public:
  States(int most, Budget& budget) : most_(most), budget_(budget) {}

  int of(const std::vector<int>& key) {
    budget_.spend(1 + static_cast<std::int64_t>(key.size()));
    auto [at, is_new] = of_.try_emplace(key, static_cast<int>(keys_.size()));
    if (is_new) {
      if (static_cast<int>(keys_.size()) >= most_) {
        throw GrammarError(
            fmt::format("the grammar is too large: a part of it needs more than {} states", most_));
      }
      keys_.push_back(&at->first);
    }
    return at->second;
  }
  std::size_t size() const { return keys_.size(); }
  const std::vector<int>& key(std::size_t i) const { return *keys_[i]; }

 private:
  int most_;
  Budget& budget_;
  std::unordered_map<std::vector<int>, int, KeyHash> of_;
  std::vector<const std::vector<int>*> keys_;
};

// Takes out states from which nothing is accepted.
Dfa without_dead_ends(const Dfa& dfa, Budget& budget) {
  const auto count = static_cast<std::size_t>(dfa.num_states());
  const auto width = static_cast<std::size_t>(dfa.num_classes);
  std::vector<std::vector<int>> before(count);
  std::vector<int> open;
  std::vector<std::uint8_t> lives(count, 0);
  for (std::size_t s = 0; s < count; ++s) {
    budget.spend(dfa.num_classes);
    for (std::size_t c = 0; c < width; ++c) {
      const int to = dfa.next[s * width + c];
      if (to >= 0) before[static_cast<std::size_t>(to)].push_back(static_cast<int>(s));
    }
    if (dfa.accepts[s]) lives[s] = 1, open.push_back(static_cast<int>(s));
  }
  while (!open.empty()) {
    const int s = open.back();
    open.pop_back();
    budget.spend(1 + static_cast<std::int64_t>(before[static_cast<std::size_t>(s)].size()) / 8);
    for (int b : before[static_cast<std::size_t>(s)]) {
      if (!std::exchange(lives[static_cast<std::size_t>(b)], 1)) open.push_back(b);
    }
  }
  std::vector<int> renamed(count, -1);
  int kept = 0;
  for (std::size_t s = 0; s < count; ++s) {
    if (lives[s]) renamed[s] = kept++;
  }
  Dfa out{.class_of = dfa.class_of, .num_classes = dfa.num_classes};
  if (dfa.start >= 0) out.start = renamed[static_cast<std::size_t>(dfa.start)];
  for (std::size_t s = 0; s < count; ++s) {
    if (!lives[s]) continue;
    budget.spend(1 + dfa.num_classes / 8);
    out.accepts.push_back(dfa.accepts[s]);
    bool goes_on = false;
    for (std::size_t c = 0; c < width; ++c) {
      const int to = dfa.next[s * width + c];
      out.next.push_back(to < 0 ? -1 : renamed[static_cast<std::size_t>(to)]);
      goes_on |= out.next.back() >= 0;
    }
    out.goes_on.push_back(goes_on);
  }
  return out;
}

// Of states whose sets of edges are sorted by class beforehand.
Dfa determinized(const Nfa& nfa, int most_states, Budget& budget) {
  Dfa dfa;
  make_classes(nfa.sets(), dfa, budget);
  const auto width = static_cast<std::size_t>(dfa.num_classes);
  std::vector<std::vector<int>> classes_of_set;
  for (const ByteSet& set : nfa.sets()) {
    budget.spend(5);
    std::vector<std::uint8_t> has(width, 0);
    for (std::size_t byte = 0; byte < 256; ++byte) has[dfa.class_of[byte]] |= set[byte];
    classes_of_set.emplace_back();
    for (std::size_t c = 0; c < width; ++c) {
      if (has[c]) classes_of_set.back().push_back(static_cast<int>(c));
    }
  }
  const auto& states = nfa.states();
  std::vector<int> mark(states.size(), -1);
  int round = 0;
  // Only states with edges, and the end, tell sets apart.
  auto closure = [&](std::vector<int> open) {
    ++round;
    std::vector<int> out;
    while (!open.empty()) {
      const int s = open.back();
      open.pop_back();
      if (std::exchange(mark[static_cast<std::size_t>(s)], round) == round) continue;
      budget.spend();
      const Nfa::State& state = states[static_cast<std::size_t>(s)];
      if (!state.edges.empty() || s == nfa.end()) out.push_back(s);
      open.insert(open.end(), state.free.begin(), state.free.end());
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  States made(most_states, budget);
  dfa.start = made.of(closure({nfa.start()}));
  std::vector<std::vector<int>> targets(width);
  for (std::size_t at = 0; at < made.size(); ++at) {
    for (auto& list : targets) list.clear();
    bool accepts = false;
    for (int s : made.key(at)) {
      accepts |= s == nfa.end();
      for (const auto& [set, to] : states[static_cast<std::size_t>(s)].edges) {
        const std::vector<int>& classes = classes_of_set[static_cast<std::size_t>(set)];
        budget.spend(1 + static_cast<std::int64_t>(classes.size()) / 16);
        for (int c : classes) {
          targets[static_cast<std::size_t>(c)].push_back(to);
        }
      }
    }
    dfa.accepts.push_back(accepts);
    budget.spend(2 * dfa.num_classes);
    for (const auto& list : targets) {
      dfa.next.push_back(list.empty() ? -1 : made.of(closure(list)));
    }
  }
  return dfa;
}

Dfa product(const Dfa& a, const Dfa& b, bool wants_both, int most_states, Budget& budget) {
  Dfa out;
  std::map<std::pair<int, int>, int> classes;
  std::vector<std::pair<int, int>> of_class;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::pair<int, int> pair{a.class_of[byte], b.class_of[byte]};
    auto [at, is_new] = classes.try_emplace(pair, static_cast<int>(classes.size()));
    if (is_new) of_class.push_back(pair);
    out.class_of[byte] = static_cast<std::uint8_t>(at->second);
  }
  out.num_classes = static_cast<int>(of_class.size());
  if (a.start < 0) return out;
  auto next = [](const Dfa& dfa, int state, int c) {
    return state < 0 ? -1 : dfa.next[static_cast<std::size_t>(state * dfa.num_classes + c)];
  };
  States made(most_states, budget);
  out.start = made.of({a.start, b.start});
  for (std::size_t at = 0; at < made.size(); ++at) {
    const int in_a = made.key(at)[0], in_b = made.key(at)[1];
    const bool b_accepts = in_b >= 0 && b.accepts[static_cast<std::size_t>(in_b)];
    out.accepts.push_back(a.accepts[static_cast<std::size_t>(in_a)] && b_accepts == wants_both);
    for (const auto& [class_a, class_b] : of_class) {
      const int to_a = next(a, in_a, class_a), to_b = next(b, in_b, class_b);
      const bool is_dead = to_a < 0 || (wants_both && to_b < 0);
      out.next.push_back(is_dead ? -1 : made.of({to_a, to_b}));
    }
  }
  return out;
}

}  // namespace

Dfa make_dfa(const Expr& expr, int most_states, Budget& budget) {
  const bool wants_both = expr.kind == Expr::Kind::kBoth;
  if (wants_both || expr.kind == Expr::Kind::kButNot) {
    const Dfa a = make_dfa(*expr.parts[0], most_states, budget);
    const Dfa b = make_dfa(*expr.parts[1], most_states, budget);
    return without_dead_ends(product(a, b, wants_both, most_states, budget), budget);
  }
  const Nfa nfa(expr, most_states, budget);
  return without_dead_ends(determinized(nfa, most_states, budget), budget);
}

}  // namespace stretto::grammar
