#include <fmt/format.h>

#include <map>
#include <utility>

#include "stretto/server/grammar/grammar.h"

namespace stretto::grammar {

class Network::Builder {
 public:
  Builder(Network& network, const Vocabulary& vocabulary, Budget& budget)
      : network_(network), vocabulary_(vocabulary), budget_(budget) {}

  void add_rule(const Expr& body) {
    Rule made{.start = add(), .end = add()};
    network_.is_end_[static_cast<std::size_t>(made.end)] = 1;
    free(add_expr(body, made.start), made.end);
    network_.rules_.push_back(made);
  }

 private:
  int add() {
    budget_.spend();
    if (network_.num_nodes() >= budget_.limits().nodes) {
      throw GrammarError("the grammar is too large");
    }
    network_.nodes_.emplace_back();
    network_.is_end_.push_back(0);
    return network_.num_nodes() - 1;
  }
  void add_edge(int from, const Edge& edge) {
    network_.nodes_[static_cast<std::size_t>(from)].push_back(edge);
  }
  void free(int from, int to) { add_edge(from, {.target = to}); }

  int add_terminal(const Expr& expr, int from) {
    auto found = vocabulary_.terminal(expr, budget_.limits().states, budget_);
    auto [at, is_new] =
        index_.try_emplace(found.get(), static_cast<int>(network_.terminals_.size()));
    if (is_new) network_.terminals_.push_back(std::move(found));
    const int to = add();
    add_edge(from, {.kind = Edge::Kind::kTerminal, .what = at->second, .target = to});
    return to;
  }

  int add_expr(const Expr& expr, int from) {
    switch (expr.kind) {
      case Expr::Kind::kSequence:
        for (const ExprPtr& part : expr.parts) from = add_expr(*part, from);
        return from;
      case Expr::Kind::kChoice: {
        const int end = add();
        for (const ExprPtr& part : expr.parts) free(add_expr(*part, from_choice(from)), end);
        return end;
      }
      case Expr::Kind::kRepeat:
        return add_repeat(expr, from);
      case Expr::Kind::kRule: {
        const int to = add();
        add_edge(from, {.kind = Edge::Kind::kRule, .what = expr.rule, .target = to});
        return to;
      }
      case Expr::Kind::kTerminal:
        return add_terminal(*expr.parts.front(), from);
      case Expr::Kind::kText:
        if (expr.text.empty()) return from;
        [[fallthrough]];
      default:
        return add_terminal(expr, from);
    }
  }

  int from_choice(int from) {
    const int begin = add();
    free(from, begin);
    return begin;
  }

  int add_repeat(const Expr& expr, int from) {
    const Expr& part = *expr.parts.front();
    for (int i = 0; i < expr.min; ++i) from = add_expr(part, from);
    const int end = add();
    if (expr.max < 0) {
      const int begin = from_choice(from);
      free(add_expr(part, begin), begin);
      free(begin, end);
      return end;
    }
    free(from, end);
    for (int i = expr.min; i < expr.max; ++i) {
      from = add_expr(part, from_choice(from));
      free(from, end);
    }
    return end;
  }

  Network& network_;
  const Vocabulary& vocabulary_;
  Budget& budget_;
  std::map<const Terminal*, int> index_;
};

Network::Network(const Rules& rules, const Vocabulary& vocabulary, Budget& budget)
    : root_(rules.root) {
  Builder builder(*this, vocabulary, budget);
  for (const ExprPtr& body : rules.bodies) builder.add_rule(*body);
  take_out_dead_ends(budget);
  check_beginnings(budget);
  shorten(budget);
  for (const auto& list : nodes_) bytes_ += sizeof(list) + list.size() * sizeof(Edge);
  for (const auto& terminal : terminals_) bytes_ += 4 * terminal->dfa().next.size() + 1024;
}

// Edges by which no end of a rule is reached, as in a rule that always calls itself.
void Network::take_out_dead_ends(Budget& budget) {
  std::vector<std::vector<std::pair<int, Edge>>> before(nodes_.size());
  std::vector<std::vector<int>> callers(rules_.size());  // nodes
  for (int n = 0; n < num_nodes(); ++n) {
    budget.spend(1 + static_cast<std::int64_t>(edges(n).size()));
    for (const Edge& edge : edges(n)) {
      before[static_cast<std::size_t>(edge.target)].emplace_back(n, edge);
      if (edge.kind == Edge::Kind::kRule) callers[static_cast<std::size_t>(edge.what)].push_back(n);
    }
  }
  std::vector<std::uint8_t> lives(nodes_.size(), 0);
  std::map<int, int> rule_of_start;
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    rule_of_start[rules_[r].start] = static_cast<int>(r);
  }
  auto may_pass = [&](const Edge& edge) {
    if (lives[static_cast<std::size_t>(edge.target)] == 0) return false;
    if (edge.kind == Edge::Kind::kTerminal) return terminal(edge.what)->dfa().start >= 0;
    if (edge.kind == Edge::Kind::kRule) {
      return lives[static_cast<std::size_t>(rule(edge.what).start)] != 0;
    }
    return true;
  };
  std::vector<int> open;
  auto revive = [&](int node) {
    if (!std::exchange(lives[static_cast<std::size_t>(node)], 1)) open.push_back(node);
  };
  for (const Rule& r : rules_) revive(r.end);
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    for (const auto& [from, edge] : before[static_cast<std::size_t>(node)]) {
      budget.spend();
      if (may_pass(edge)) revive(from);
    }
    auto its_rule = rule_of_start.find(node);
    if (its_rule == rule_of_start.end()) continue;
    for (int from : callers[static_cast<std::size_t>(its_rule->second)]) {
      budget.spend(1 + static_cast<std::int64_t>(edges(from).size()) / 4);
      for (const Edge& edge : edges(from)) {
        if (may_pass(edge)) revive(from);
      }
    }
  }
  if (!lives[static_cast<std::size_t>(root().start)]) {
    throw GrammarError("no text at all matches the grammar");
  }
  for (auto& list : nodes_) std::erase_if(list, [&](const Edge& edge) { return !may_pass(edge); });
}

// A rule that can call itself before a byte is there would be opened without end.
void Network::check_beginnings(Budget& budget) const {
  // Which rules match the empty text.
  std::vector<std::uint8_t> may_be_empty(rules_.size(), 0);
  auto passes = [&](const Edge& edge) {
    if (edge.kind == Edge::Kind::kRule) {
      return may_be_empty[static_cast<std::size_t>(edge.what)] != 0;
    }
    if (edge.kind == Edge::Kind::kTerminal) {
      const Dfa& dfa = terminal(edge.what)->dfa();
      return dfa.accepts[static_cast<std::size_t>(dfa.start)] != 0;
    }
    return true;
  };
  std::vector<int> mark(nodes_.size(), -1);
  int round = 0;
  auto each_at_once = [&](const Rule& r, const auto& visit) {
    ++round;
    std::vector<int> open = {r.start};
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      if (std::exchange(mark[static_cast<std::size_t>(node)], round) == round) continue;
      budget.spend();
      visit(node);
      budget.spend(static_cast<std::int64_t>(edges(node).size()) / 4);
      for (const Edge& edge : edges(node)) {
        if (passes(edge)) open.push_back(edge.target);
      }
    }
  };
  for (bool changed = true; std::exchange(changed, false);) {
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      if (may_be_empty[r]) continue;
      each_at_once(rules_[r], [&](int node) {
        if (node == rules_[r].end) may_be_empty[r] = 1, changed = true;
      });
    }
  }
  std::vector<std::vector<int>> calls(rules_.size());
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    each_at_once(rules_[r], [&](int node) {
      for (const Edge& edge : edges(node)) {
        if (edge.kind == Edge::Kind::kRule) calls[r].push_back(edge.what);
      }
    });
  }
  enum : std::uint8_t { kNew, kOpen, kDone };
  std::vector<std::uint8_t> state(rules_.size(), kNew);
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    std::vector<std::pair<int, std::size_t>> path;
    if (state[r] == kNew) path.emplace_back(static_cast<int>(r), 0), state[r] = kOpen;
    while (!path.empty()) {
      auto& [at, next] = path.back();
      const std::vector<int>& its = calls[static_cast<std::size_t>(at)];
      if (next == its.size()) {
        state[static_cast<std::size_t>(at)] = kDone;
        path.pop_back();
        continue;
      }
      const int to = its[next++];
      budget.spend();
      if (state[static_cast<std::size_t>(to)] == kOpen) {
        throw GrammarError("a rule begins with itself (left recursion), which is not supported");
      }
      if (std::exchange(state[static_cast<std::size_t>(to)], kOpen) == kDone) {
        state[static_cast<std::size_t>(to)] = kDone;
      } else {
        path.emplace_back(to, 0);
      }
    }
  }
}

// Edges lead past nodes that only lead on.
void Network::shorten(Budget& budget) {
  for (auto& list : nodes_) {
    for (Edge& edge : list) {
      for (int hops = 0; hops < 1000; ++hops) {
        const auto& next = edges(edge.target);
        if (is_end(edge.target) || next.size() != 1 || next[0].kind != Edge::Kind::kFree) break;
        budget.spend();
        edge.target = next[0].target;
      }
    }
  }
}

}  // namespace stretto::grammar
