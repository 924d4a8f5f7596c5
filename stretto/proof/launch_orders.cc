#include "stretto/proof/launch_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/proof/finding.h"
#include "stretto/proof/sync_kinds.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

using Word = std::vector<int>;

bool is_mixed(const Word& word) {
  return std::any_of(word.begin(), word.end(), [&](int k) { return k != word[0]; });
}

int num_changes(const Word& word) {
  int changes = 0;
  for (std::size_t i = 1; i < word.size(); ++i) changes += word[i] != word[i - 1] ? 1 : 0;
  return changes;
}

// The slot counts of buffers that other ranks may touch.
std::set<int> slot_counts(const Program& program) {
  std::set<int> counts;
  for (const Tensor& t : program.tensors) {
    bool counts_here = t.kind == TensorKind::kBuffer && t.space == Space::kSymmetric;
    if (counts_here) counts.insert(t.num_slots);
  }
  return counts;
}

// A counter that is waited for and that several ranks notify, at all sizes together.
struct SharedCounter {
  int counter = -1;
  std::set<int> senders;
};

std::vector<SharedCounter> shared_counters(const std::vector<LaunchKind>& kinds) {
  const InstanceGraph& graph = *kinds[0].cases[0].graph;
  std::vector<std::set<int>> senders(graph.counters.size());
  std::vector<bool> waited(graph.counters.size(), false);
  for (const LaunchKind& kind : kinds) {
    for (const AgentTrace& agent : kind.cases[0].graph->agents) {
      for (const Sync& s : agent.syncs) {
        bool signal = (s.kind == SyncKind::kWait || s.kind == SyncKind::kNotify) &&
                      graph.counters[at(s.counter)].kind == CounterKind::kSignal;
        if (!signal) continue;
        if (s.kind == SyncKind::kWait) waited[at(s.counter)] = true;
        if (s.kind == SyncKind::kNotify) senders[at(s.counter)].insert(agent.rank);
      }
    }
  }
  std::vector<SharedCounter> shared;
  for (std::size_t c = 0; c < senders.size(); ++c) {
    bool several = waited[c] && senders[c].size() > 1;
    if (several) shared.push_back({static_cast<int>(c), std::move(senders[c])});
  }
  return shared;
}

// Some signal, on one channel of one rank.
bool several_agents_notify(const InstanceGraph& graph) {
  std::vector<std::optional<std::size_t>> senders(graph.counters.size());
  for (std::size_t a = 0; a < graph.agents.size(); ++a) {
    for (const Sync& s : graph.agents[a].syncs) {
      bool signal =
          s.kind == SyncKind::kNotify && graph.counters[at(s.counter)].kind == CounterKind::kSignal;
      if (!signal) continue;
      if (senders[at(s.counter)].value_or(a) != a) return true;
      senders[at(s.counter)] = a;
    }
  }
  return false;
}

// Some other rank that ends a launch which `rank` has not begun.
std::optional<int> ends_without(const InstanceGraph& graph, int rank) {
  InstanceGraph others = graph;
  for (AgentTrace& agent : others.agents) {
    if (agent.rank == rank) agent.syncs.clear();
  }
  Execution execution = execute(Timeline{{&others}});
  for (const Step& step : execution.steps) {
    const AgentTrace& agent = others.agents[at(step.agent)];
    bool ends = agent.rank != rank && agent.phase == Phase::kEnd &&
                step.end == static_cast<int>(agent.syncs.size());
    if (ends) return agent.rank;
  }
  return {};
}

// A rank that gets past the launch after the one that a rank is in which waits for several.
struct RunsAhead {
  SharedCounter waited;
  int rank = -1;
};

std::optional<RunsAhead> runs_ahead(const std::vector<LaunchKind>& kinds,
                                    const std::vector<SharedCounter>& shared) {
  const InstanceGraph& graph = *kinds[0].cases[0].graph;
  std::set<int> seen;
  for (const SharedCounter& s : shared) {
    int waiting = graph.counters[at(s.counter)].rank;
    if (!seen.insert(waiting).second) continue;
    for (const LaunchKind& kind : kinds) {
      std::optional<int> ahead = ends_without(*kind.cases[0].graph, waiting);
      if (ahead) return RunsAhead{s, *ahead};
    }
  }
  return {};
}

// "3 kinds of launches (m = 8; m = 7; ...), the first two differ at gather.cc:20".
std::string describe_kinds(const std::vector<LaunchKind>& kinds) {
  constexpr std::size_t kMostNamed = 3;
  std::string names;
  for (std::size_t k = 0; k < std::min(kinds.size(), kMostNamed); ++k) {
    names += (k == 0 ? "" : "; ") + kinds[k].cases[0].where;
  }
  if (kinds.size() > kMostNamed) names += "; ...";
  const Op* op = first_difference(*kinds[0].cases[0].graph, *kinds[1].cases[0].graph);
  return fmt::format("{} kinds of launches ({}), the first two differ {}", kinds.size(), names,
                     op != nullptr ? "at " + describe_loc(op) : "in which packets meet");
}

std::string describe_loc(const SourceLoc& loc) { return fmt::format("{}:{}", loc.file, loc.line); }

// Of several kinds, and a signal of several senders or a buffer whose slots are in doubt.
OrdersLeftOut describe_left_out(const Program& program, const std::vector<LaunchKind>& kinds,
                                const SharedCounter* shared, int in_doubt) {
  if (shared != nullptr) {
    const InstanceGraph& graph = *kinds[0].cases[0].graph;
    const Signal& signal = program.signals[at(graph.counters[at(shared->counter)].symbol)];
    return {.where = describe_loc(signal.loc),
            .expression = fmt::format("{} is waited for and notified by ranks {}",
                                      describe_counter(graph, shared->counter),
                                      fmt::join(shared->senders, ", "))};
  }
  if (in_doubt >= 0) {
    const Tensor& tensor = program.tensors[at(in_doubt)];
    return {.where = describe_loc(tensor.loc),
            .expression = fmt::format("when slots of '{}' are free again does not show in each "
                                      "kind of launches by itself",
                                      tensor.name)};
  }
  const Op* op = first_difference(*kinds[0].cases[0].graph, *kinds[1].cases[0].graph);
  return {.where = op != nullptr ? describe_loc(op) : describe_loc(program.roles[0].loc),
          .expression = "that any of them may follow another does not show in each by itself"};
}

// Every word of `length` letters out of so many.
std::vector<Word> all_words(int letters, int length) {
  std::vector<Word> words = {{}};
  for (int i = 0; i < length; ++i) {
    std::vector<Word> longer;
    for (const Word& word : words) {
      for (int k = 0; k < letters; ++k) {
        longer.push_back(word);
        longer.back().push_back(k);
      }
    }
    words = std::move(longer);
  }
  return words;
}

// So that the window shows of every sender that it does not go on for ever, each kind comes once
// more.
void end_with_each(Word& word) {
  std::set<int> kinds(word.begin(), word.end());
  word.insert(word.end(), kinds.begin(), kinds.end());
}

// Of two kinds, 0 and 1, the first of which comes first.
std::vector<LaunchOrder> orders_of_two(int slots) {
  constexpr int kMostSlotsInFull = 3;
  std::vector<LaunchOrder> orders;
  int length = slots + 2;
  Word in_turn;
  for (int i = 0; i < length + slots + 2; ++i) in_turn.push_back(i % 2);
  orders.push_back({.kinds = std::move(in_turn), .reach = slots, .named = 0});
  std::vector<Word> words;
  if (slots <= kMostSlotsInFull) {
    words = all_words(2, length);
  } else {
    for (int from = 1; from < length; ++from) {
      for (int to = from + 1; to <= length; ++to) {
        Word word(at(length), 0);
        std::fill(word.begin() + from, word.begin() + to, 1);
        words.push_back(std::move(word));
      }
    }
  }
  for (Word& word : words) {
    bool fits = word[0] == 0 && is_mixed(word);
    if (!fits) continue;
    word.insert(word.end(), at(slots), word.back());
    end_with_each(word);
    orders.push_back({.kinds = std::move(word), .reach = slots, .named = length});
  }
  std::stable_sort(orders.begin() + 1, orders.end(), [](const auto& x, const auto& y) {
    return num_changes(x.kinds) < num_changes(y.kinds);
  });
  return orders;
}

// The largest size's kind with each other one, and neighbours, or else the rest; both ways.
std::vector<std::pair<int, int>> pairs(int num_kinds, bool first) {
  std::vector<std::pair<int, int>> some;
  for (int i = 0; i < num_kinds; ++i) {
    for (int j = i + 1; j < num_kinds; ++j) {
      if ((i == 0 || j == i + 1) != first) continue;
      some.emplace_back(i, j);
      some.emplace_back(j, i);
    }
  }
  return some;
}

// All sequences up to where two launches share a slot for the first time, and so many more; none
// where those are too many.
std::vector<LaunchOrder> all_orders(const Program& program, int num_kinds, int more,
                                    std::size_t affordable) {
  std::vector<LaunchOrder> orders;
  std::set<int> counts = slot_counts(program);
  if (counts.empty()) counts = {0};  // what follows may still matter within a launch
  for (int slots : counts) {
    int length = slots + 1 + more;
    double count = 1;
    for (int i = 0; i < length; ++i) count *= num_kinds;
    if (count + static_cast<double>(orders.size()) > static_cast<double>(affordable)) return {};
    for (Word& word : all_words(num_kinds, length)) {
      if (!is_mixed(word)) continue;
      end_with_each(word);
      orders.push_back({.kinds = std::move(word), .reach = slots, .named = length});
    }
  }
  return orders;
}

}  // namespace

bool notified_by_one(const std::vector<LaunchKind>& kinds) {
  return shared_counters(kinds).empty();
}

int most_slots(const Program& program) {
  std::set<int> counts = slot_counts(program);
  return counts.empty() ? 1 : std::max(1, *counts.rbegin());
}

LaunchOrder steady_order(const Program& program, int kind) {
  int slots = most_slots(program);
  return {.kinds = Word(at(3 * std::int64_t{slots} + 1), kind), .reach = slots, .named = 0};
}

LaunchOrder short_order(const Program& program, const LaunchKind& of, int kind) {
  int slots = most_slots(program), more = several_agents_notify(*of.cases[0].graph) ? 2 : 1;
  return {.kinds = Word(at(slots + more), kind), .reach = slots, .named = 0};
}

MixedOrders mixed_orders(const Program& program, const std::vector<LaunchKind>& kinds,
                         std::size_t affordable, int in_doubt) {
  auto num_kinds = static_cast<int>(kinds.size());
  if (num_kinds < 2) return {};
  std::vector<SharedCounter> shared = shared_counters(kinds);
  if (shared.empty() && slot_counts(program).empty()) return {};  // no launch meets another
  std::optional<RunsAhead> ahead = runs_ahead(kinds, shared);
  MixedOrders out;
  if (!ahead) out.orders = all_orders(program, num_kinds, shared.empty() ? 0 : 1, affordable);
  if (!out.orders.empty()) return out;
  const SharedCounter* waited = ahead ? &ahead->waited : shared.empty() ? nullptr : &shared[0];
  out.left_out = describe_left_out(program, kinds, waited, in_doubt);
  out.left_out->expression +=
      ahead ? fmt::format("; rank {} may end a launch before that rank begins it; {}", ahead->rank,
                          describe_kinds(kinds))
            : fmt::format("; {}; more sequences of them than the {} that are looked at",
                          describe_kinds(kinds), affordable);
  affordable /= 4;
  std::vector<LaunchOrder> of_two = orders_of_two(most_slots(program));
  for (bool first : {true, false}) {
    for (const LaunchOrder& order : of_two) {
      for (auto [x, y] : pairs(num_kinds, first)) {
        if (out.orders.size() >= affordable) return out;
        out.orders.push_back(order);
        for (int& k : out.orders.back().kinds) k = k == 0 ? x : y;
      }
    }
  }
  return out;
}

std::string describe_order(const std::vector<LaunchKind>& kinds, const LaunchOrder& order,
                           const CasesInTurn& sizes) {
  const Word& word = order.kinds;
  auto size = [&](int launch) -> const std::string& {
    const auto& cases = kinds[at(word[at(launch)])].cases;
    if (launch == 0) return cases[at(sizes.first)].where;
    bool as_later = sizes.apart > 0 && word[at(launch)] == word[at(sizes.apart)];
    return cases[as_later ? at(sizes.later) : 0].where;
  };
  bool mixed = is_mixed(word);
  if (mixed && order.named == 0) return fmt::format("{} and {} in turn", size(0), size(1));
  int named = std::max(mixed ? order.named : 1, sizes.apart + 1);
  std::string text;
  for (int from = 0, to = 0; from < named; from = to + 1) {
    for (to = from; to + 1 < named && size(to + 1) == size(from);) ++to;
    if (from == 0 && to + 1 == named) return size(0);
    std::string which =
        from == to ? fmt::format(" {}", from) : fmt::format("es {} to {}", from, to);
    text += fmt::format("{}{} in launch{}", from == 0 ? "" : ", ", size(from), which);
  }
  return text;
}

}  // namespace stretto
