#include "stretto/proof/necessary_notifies.h"

#include <algorithm>
#include <limits>

#include "stretto/base/at.h"

namespace stretto {
namespace {

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace

NecessaryNotifies::NecessaryNotifies(const VectorClocks& vectors,
                                     const std::vector<NotifyChain>& chains,
                                     std::vector<std::vector<std::int32_t>> clocks)
    : vectors_(vectors), chains_(chains), clocks_(std::move(clocks)), guess_(chains.size(), 0) {
  std::size_t num_items = 0;
  for (const NotifyChain& chain : chains) {
    first_row_.push_back(num_items);
    num_items += chain.items.size();
  }
  after_.assign(num_items * chains.size(), -1);
}

std::vector<int> NecessaryNotifies::of_wait(int component, std::int64_t position,
                                            std::int64_t threshold, const std::vector<int>& known) {
  Cut cut = cut_at(component, position);
  std::vector<int>& needed = needed_[{threshold, cut}];
  if (needed.empty()) {
    for (std::size_t g = 0; g < cut.size(); ++g) {
      needed.push_back(necessary_of(threshold, cut, g, known[g]));
    }
  }
  return needed;
}

// Of what comes after `position` of `component`.
NecessaryNotifies::Cut NecessaryNotifies::cut_at(int component, std::int64_t position) {
  Cut cut;
  look_from(component, position);
  for (std::size_t c = 0; c < chains_.size(); ++c) {
    int end = first_after(c);
    cut.push_back(end == static_cast<int>(chains_[c].items.size()) ? -1 : end);
  }
  return cut;
}

// What chains other than this one can add without the wait.
std::int64_t NecessaryNotifies::most_of_others(const Cut& cut, std::size_t chain) const {
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
std::int64_t NecessaryNotifies::available_without(const Cut& cut, std::size_t chain, int item,
                                                  std::int64_t enough) {
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

// The items [0, lo) are necessary; how many are more. What other chains can add at most, whatever
// comes after the item, mostly tells it.
int NecessaryNotifies::necessary_of(std::int64_t threshold, const Cut& cut, std::size_t chain,
                                    int lo) {
  const auto& items = chains_[chain].items;
  int hi = cut[chain] < 0 ? static_cast<int>(items.size()) : cut[chain];
  std::int64_t lacking = threshold - most_of_others(cut, chain);
  auto enough =
      std::lower_bound(items.begin(), items.begin() + hi, lacking,
                       [](const NotifyChain::Item& i, std::int64_t t) { return i.prefix < t; });
  if (lacking > 0) lo = std::max(lo, std::min(hi, static_cast<int>(enough - items.begin()) + 1));
  auto is_necessary = [&](int item) {
    return available_without(cut, chain, item, threshold) < threshold;
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

// The first item of chain `other` that comes after the one that is looked from.
int NecessaryNotifies::after(std::size_t chain, int item, std::size_t other) {
  int& found = after_[(first_row_[chain] + at(item)) * chains_.size() + other];
  if (found < 0) found = first_after(other);
  return found;
}

void NecessaryNotifies::look_from(int component, std::int64_t position) {
  component_ = component;
  position_ = position;
  seen_.fill({-1, false});
}

// Items share clocks: notifies of a launch's agents that have waited for nothing, say.
bool NecessaryNotifies::is_after(std::size_t chain, int item) {
  if (chains_[chain].component == component_) {
    return chains_[chain].items[at(item)].position > position_;
  }
  std::int32_t clock = clocks_[chain][at(item)];
  Seen& seen = seen_[at(clock) % seen_.size()];
  if (seen.clock != clock) {
    seen = {clock, vectors_.component(clock, component_) > position_};
  }
  return seen.after;
}

// The first of the chain's items that comes after the place that is looked from; their number
// where none does. As a rule it is the one that was found last.
int NecessaryNotifies::first_after(std::size_t chain) {
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

}  // namespace stretto
