// The rule of necessity (happens_before.h): which notifies a wait cannot do without, as far as it
// is known what comes after what.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "stretto/proof/vector_clocks.h"

namespace stretto {

// The notifies of a counter that are ordered by a component, in their order.
struct NotifyChain {
  struct Item {
    int id;  // over all chains
    int agent, launch, pos;
    std::int64_t position;  // on the component's axis
    std::int64_t prefix;    // amounts of the chain up to and including this one
  };
  int component = -1;
  std::vector<Item> items;
};

// Of one counter.
class NecessaryNotifies {
 public:
  // `clocks`: [chain][item] of `vectors`, what has come before. Keeps references to both others.
  NecessaryNotifies(const VectorClocks& vectors, const std::vector<NotifyChain>& chains,
                    std::vector<std::vector<std::int32_t>> clocks);

  // Per chain, how many of its first items a wait for `threshold` cannot do without that stands at
  // `position` of `component`; of `known` that is known.
  std::vector<int> of_wait(int component, std::int64_t position, std::int64_t threshold,
                           const std::vector<int>& known);

 private:
  // How many items of each chain can come without a wait; -1: all, endlessly.
  using Cut = std::vector<int>;
  struct Seen {
    std::int32_t clock;
    bool after;
  };

  Cut cut_at(int component, std::int64_t position);
  std::int64_t most_of_others(const Cut& cut, std::size_t chain) const;
  std::int64_t available_without(const Cut& cut, std::size_t chain, int item, std::int64_t enough);
  int necessary_of(std::int64_t threshold, const Cut& cut, std::size_t chain, int lo);
  int after(std::size_t chain, int item, std::size_t other);
  void look_from(int component, std::int64_t position);
  bool is_after(std::size_t chain, int item);
  int first_after(std::size_t chain);

  const VectorClocks& vectors_;
  const std::vector<NotifyChain>& chains_;
  std::vector<std::vector<std::int32_t>> clocks_;  // [chain][item]
  // For every item the first item of every chain that comes after it, found when first asked for.
  std::vector<std::size_t> first_row_;
  std::vector<int> after_;
  // What is needed of every chain by the waits with this threshold and cut.
  std::map<std::pair<std::int64_t, Cut>, std::vector<int>> needed_;
  // Where it is looked from.
  int component_ = 0;
  std::int64_t position_ = 0;
  std::array<Seen, 16> seen_{};
  std::vector<int> guess_;  // per chain
};

}  // namespace stretto
