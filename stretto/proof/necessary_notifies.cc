// The rule of necessity (happens_before.h): which notifies a wait cannot do without.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/proof/happens_before.h"

namespace stretto {
namespace {

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace

class HappensBefore::AfterTable {
 public:
  // How many items of each chain can come without a wait; -1: all, endlessly.
  using Cut = std::vector<int>;

  AfterTable(const HappensBefore& order, const std::vector<Chain>& chains)
      : order_(order), chains_(chains), guess_(chains.size(), 0) {
    std::size_t num_items = 0;
    for (const Chain& chain : chains) {
      first_row_.push_back(num_items);
      num_items += chain.items.size();
      auto& clocks = clocks_.emplace_back();
      for (const ChainItem& i : chain.items) {
        clocks.push_back(order.clock_at(order.causal_, {i.agent, i.launch, i.pos}));
      }
    }
    after_.assign(num_items * chains.size(), -1);
  }

  const std::vector<Chain>& chains() const { return chains_; }

  // What is needed of every chain by the waits with this threshold and cut; empty where not known.
  std::vector<int>& needed(std::int64_t threshold, const Cut& cut) {
    return needed_[{threshold, cut}];
  }

  // Of what comes after `position` of `component`.
  Cut cut_at(int component, std::int64_t position) {
    Cut cut;
    look_from(component, position);
    for (std::size_t c = 0; c < chains_.size(); ++c) {
      int end = first_after(c);
      cut.push_back(end == static_cast<int>(chains_[c].items.size()) ? -1 : end);
    }
    return cut;
  }

  // What chains other than this one can add without the wait.
  std::int64_t most_of_others(const Cut& cut, std::size_t chain) const {
    std::int64_t sum = 0;
    for (std::size_t h = 0; h < chains_.size(); ++h) {
      if (h == chain || cut[h] == 0) continue;
      if (cut[h] < 0) return kEndless;
      sum += chains_[h].items[at(cut[h] - 1)].prefix;
    }
    return sum;
  }

  // What the counter can reach when item `item` of chain `chain` has not happened, counting no
  // further than `enough`.
  std::int64_t available_without(const Cut& cut, std::size_t chain, int item, std::int64_t enough) {
    look_from(chains_[chain].component, chains_[chain].items[at(item)].position);
    std::int64_t sum = item == 0 ? 0 : chains_[chain].items[at(item - 1)].prefix;
    for (std::size_t h = 0; h < chains_.size() && sum < enough; ++h) {
      if (h == chain) continue;
      int end = after(chain, item, h);
      if (cut[h] < 0 && end == static_cast<int>(chains_[h].items.size())) return kEndless;
      if (cut[h] >= 0) end = std::min(end, cut[h]);
      if (end > 0) sum += chains_[h].items[at(end - 1)].prefix;
    }
    return sum;
  }

 private:
  // The first item of chain `other` that comes after the one that is looked from.
  int after(std::size_t chain, int item, std::size_t other) {
    int& found = after_[(first_row_[chain] + at(item)) * chains_.size() + other];
    if (found < 0) found = first_after(other);
    return found;
  }

  void look_from(int component, std::int64_t position) {
    component_ = component;
    position_ = position;
    seen_.fill({-1, false});
  }

  // Items share clocks: notifies of a launch's agents that have waited for nothing, say.
  bool is_after(std::size_t chain, int item) {
    if (chains_[chain].component == component_) {
      return chains_[chain].items[at(item)].position > position_;
    }
    std::int32_t clock = clocks_[chain][at(item)];
    Seen& seen = seen_[at(clock) % seen_.size()];
    if (seen.clock != clock) {
      seen = {clock, order_.component(order_.causal_, clock, component_) > position_};
    }
    return seen.after;
  }

  // The first of the chain's items that comes after the place that is looked from; their number
  // where none does. As a rule it is the one that was found last.
  int first_after(std::size_t chain) {
    int lo = 0, hi = static_cast<int>(chains_[chain].items.size());
    int& guess = guess_[chain];
    bool right =
        (guess == hi || is_after(chain, guess)) && (guess == 0 || !is_after(chain, guess - 1));
    if (right) return guess;
    while (lo < hi) {
      int mid = lo + (hi - lo) / 2;
      if (is_after(chain, mid)) {
        hi = mid;
      } else {
        lo = mid + 1;
      }
    }
    return guess = lo;
  }

  struct Seen {
    std::int32_t clock;
    bool after;
  };

  const HappensBefore& order_;
  const std::vector<Chain>& chains_;
  std::vector<std::vector<std::int32_t>> clocks_;  // [chain][item]
  std::vector<std::size_t> first_row_;
  std::vector<int> after_;
  std::map<std::pair<std::int64_t, Cut>, std::vector<int>> needed_;
  // Where it is looked from.
  int component_ = 0;
  std::int64_t position_ = 0;
  std::array<Seen, 16> seen_{};
  std::vector<int> guess_;  // per chain
};

bool HappensBefore::refine() {
  bool changed = false;
  for (std::size_t c = 0; c < waits_on_.size(); ++c) {
    if (!waits_on_[c].empty()) changed |= refine(static_cast<int>(c), waits_on_[c]);
  }
  return changed;
}

// Waits for the same threshold with the same future need the same notifies: on a role's agents
// without notifies, those are all waits of a rank and launch.
bool HappensBefore::refine(int counter, const std::vector<int>& waits) {
  AfterTable table(*this, (*chains_)[at(counter)]);
  std::map<std::tuple<int, std::int64_t, std::int64_t>, std::vector<int>> known;
  std::map<std::vector<int>, int> alike;  // by what is needed
  bool changed = false;
  for (int w : waits) {
    MultiWait& wait = multi_waits_[at(w)];
    auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
    auto [it, is_new] = known.try_emplace({component, position, wait.threshold});
    if (is_new) it->second = necessary(table, wait);
    changed |= it->second != wait.needed;
    wait.needed = it->second;
    auto [number, is_first] = alike.try_emplace(wait.needed, num_alike_);
    if (is_first) ++num_alike_;
    wait.alike = number->second;
  }
  return changed;
}

// Per chain, how many of its first items the wait cannot do without.
std::vector<int> HappensBefore::necessary(AfterTable& table, const MultiWait& wait) const {
  auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
  std::vector<int> cut = table.cut_at(component, position);
  std::vector<int>& known = table.needed(wait.threshold, cut);
  if (known.empty()) {
    for (std::size_t g = 0; g < cut.size(); ++g) {
      known.push_back(necessary_of(table, wait.threshold, cut, g, wait.needed[g]));
    }
  }
  return known;
}

// The items [0, lo) are necessary; how many are more. What other chains can add at most, whatever
// comes after the item, mostly tells it.
int HappensBefore::necessary_of(AfterTable& table, std::int64_t threshold,
                                const std::vector<int>& cut, std::size_t chain, int lo) {
  const auto& items = table.chains()[chain].items;
  int hi = cut[chain] < 0 ? static_cast<int>(items.size()) : cut[chain];
  std::int64_t lacking = threshold - table.most_of_others(cut, chain);
  auto enough = std::lower_bound(items.begin(), items.begin() + hi, lacking,
                                 [](const ChainItem& i, std::int64_t t) { return i.prefix < t; });
  if (lacking > 0) lo = std::max(lo, std::min(hi, static_cast<int>(enough - items.begin()) + 1));
  auto is_necessary = [&](int item) {
    return table.available_without(cut, chain, item, threshold) < threshold;
  };
  if (lo < hi && !is_necessary(lo)) return lo;
  while (lo < hi) {  // from hi on they are not
    int mid = lo + (hi - lo) / 2;
    if (is_necessary(mid)) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

std::vector<HappensBefore::Need> HappensBefore::needs_of(int launch) const {
  std::vector<Need> needs;
  for (int a = 0; a < static_cast<int>(graph_.agents.size()); ++a) {
    const auto& syncs = timeline_.trace(a, launch).syncs;
    for (int pos = 0; pos < static_cast<int>(syncs.size()); ++pos) {
      const Sync& s = syncs[at(pos)];
      bool told = s.kind == SyncKind::kWait &&
                  graph_.counters[at(s.counter)].kind == CounterKind::kSignal && s.amount > 0;
      if (!told) continue;
      const auto& chains = (*chains_)[at(s.counter)];
      auto add = [&](const ChainItem& i) { needs.push_back({a, pos, i.agent, i.launch, i.pos}); };
      if (chains.size() == 1) {
        add(first_to_reach(chains[0], counter_base_[at(launch)][at(s.counter)] + s.amount));
      }
      if (chains.size() < 2) continue;
      std::size_t place = place_idx({a, launch, pos});
      const MultiWait& wait = multi_waits_[at(multi_wait_at_[at(a)].at(place))];
      for (std::size_t c = 0; c < chains.size(); ++c) {
        if (wait.needed[c] > 0) add(chains[c].items[at(wait.needed[c] - 1)]);
      }
    }
  }
  std::sort(needs.begin(), needs.end());
  return needs;
}

}  // namespace stretto
