// The rule of necessity (happens_before.h): which notifies a wait cannot do without.
#include <limits>
#include <map>
#include <tuple>

#include "stretto/proof/happens_before.h"

namespace stretto {
namespace {

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

class HappensBefore::AfterTable {
 public:
  AfterTable(const HappensBefore& order, const std::vector<Chain>& chains)
      : order_(order), chains_(chains) {
    std::size_t num_items = 0;
    for (const Chain& chain : chains) {
      first_row_.push_back(num_items);
      num_items += chain.items.size();
    }
    after_.assign(num_items * chains.size(), -1);
  }

  const std::vector<Chain>& chains() const { return chains_; }

  int after(std::size_t chain, int item, std::size_t other) {
    int& found = after_[(first_row_[chain] + at(item)) * chains_.size() + other];
    if (found < 0) {
      found = order_.first_after(chains_[other], chains_[chain].component,
                                 chains_[chain].items[at(item)].position);
    }
    return found;
  }

  // What the counter can reach when item `item` of chain `chain` has not happened, counting no
  // further than `enough`. cut[h] items of chain h can come without the wait; -1: all, endlessly.
  std::int64_t available_without(const std::vector<int>& cut, std::size_t chain, int item,
                                 std::int64_t enough) {
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
  const HappensBefore& order_;
  const std::vector<Chain>& chains_;
  std::vector<std::size_t> first_row_;
  std::vector<int> after_;
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
  AfterTable table(*this, chains_[at(counter)]);
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

// The first of the chain's items that comes after `position` of `component`; their number where
// none does.
int HappensBefore::first_after(const Chain& chain, int component, std::int64_t position) const {
  int lo = 0, hi = static_cast<int>(chain.items.size());
  while (lo < hi) {
    int mid = lo + (hi - lo) / 2;
    const ChainItem& item = chain.items[at(mid)];
    bool after;
    if (chain.component == component) {
      after = item.position > position;
    } else {
      std::int32_t clock = clock_at(causal_, {item.agent, item.launch, item.pos});
      after = this->component(causal_, clock, component) > position;
    }
    if (after) {
      hi = mid;
    } else {
      lo = mid + 1;
    }
  }
  return lo;
}

// Per chain, how many of its first items the wait cannot do without.
std::vector<int> HappensBefore::necessary(AfterTable& table, const MultiWait& wait) const {
  const auto& chains = table.chains();
  auto [component, position] = stamp({wait.agent, wait.launch, wait.pos});
  std::vector<int> cut, needed = wait.needed;
  for (const Chain& chain : chains) {
    int end = first_after(chain, component, position);
    cut.push_back(end == static_cast<int>(chain.items.size()) ? -1 : end);
  }
  for (std::size_t g = 0; g < chains.size(); ++g) {
    int lo = needed[g];
    int hi = cut[g] < 0 ? static_cast<int>(chains[g].items.size()) : cut[g];
    while (lo < hi) {  // items [0, lo) are necessary, those from hi on are not
      int mid = lo + (hi - lo) / 2;
      if (table.available_without(cut, g, mid, wait.threshold) < wait.threshold) {
        lo = mid + 1;
      } else {
        hi = mid;
      }
    }
    needed[g] = lo;
  }
  return needed;
}

}  // namespace stretto
