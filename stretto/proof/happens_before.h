// Which event must come before which, over a window of launches, as vector clocks.
//
// Edges: an agent's program order; per rank launch start -> on_start -> roles -> on_end -> launch
// end -> next start; and notify -> wait by necessity: a notify x happens-before a wait w exactly
// when w's threshold cannot be reached without x, that is, when the amounts of all notifies of the
// counter that are neither x, nor after x, nor after w, do not add up to it. The order is the least
// fixpoint: each edge found can only shrink those sums. A chain of notifies that the window shows
// no end of counts as endless, so what is derived holds for every continuation.
//
// Two strengths. `causal` is the order in time; `visible` is what carries memory: a packet orders
// nothing but itself, and a pipe's edge carries the producer's own global writes only as far as its
// last fence or notify. Every wait is an acquire and every notify a release of all before it.
//
// Memory: one component per agent that notifies, one per rank for everything else; clocks exist
// only where a wait changed something and are shared.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "stretto/proof/timeline.h"

namespace stretto {

// A place in an agent's program order: after `pos` synchronisation events of launch `launch`.
struct Place {
  int agent, launch, pos;
};

enum class Strength : std::uint8_t { kCausal, kVisible };

class HappensBefore {
 public:
  // `execution` must have finished. Keeps a reference to `timeline`.
  HappensBefore(const Timeline& timeline, const Execution& execution);

  // Does what is at `x` happen before what is at `y`? For the same agent: through synchronisation
  // alone (notify to itself, or the launch's end), program order not counting.
  bool before(const Place& x, const Place& y, Strength strength) const;
  // The rank's launch start / end against a place on any rank.
  bool start_before(int rank, int launch, const Place& y, Strength strength) const;
  bool before_end(const Place& x, int rank, int launch, Strength strength) const;

  // Empty when every wait of launches [1, period] has the same necessary notifies as its twin one
  // period later; else the first that has not.
  std::string shift_difference(int period) const;

  std::size_t num_clocks() const { return num_clocks_; }
  int num_components() const { return num_components_; }
  int num_rounds() const { return num_rounds_; }

 private:
  struct ChainItem {
    int id;  // over all chains
    int agent, launch, pos;
    std::int64_t position;  // on the component's axis
    std::int64_t prefix;    // amounts of the chain up to and including this one
  };
  struct Chain {
    int component = -1;
    std::vector<ChainItem> items;
  };
  struct MultiWait {
    int agent, launch, pos, counter;
    std::int64_t threshold;
    std::vector<int> needed;  // per chain: how many of its first items are necessary
  };
  // For every item of a counter's chains: the first item of every chain that comes after it, found
  // when first asked for.
  class AfterTable;
  // Clock ids per place, for one strength.
  struct Clocks {
    std::vector<std::int32_t> arena;
    std::vector<std::vector<std::int32_t>> at_place;  // [agent][offset(launch) + pos]
    std::vector<std::vector<std::int32_t>> at_end;    // [rank][launch]
    std::vector<std::int32_t> stream, roles, joined;  // [rank]: the launch under way
    std::unordered_map<std::uint64_t, std::int32_t> merged;
  };

  void number_components();
  void build_chains();
  void find_multi_waits();
  void index_packets();
  void compute_clocks(const Execution& execution, Clocks& clocks, Strength strength);
  std::int32_t begin_agent(Clocks& clocks, const Step& step);
  void end_agent(Clocks& clocks, const Step& step, std::int32_t clock);
  std::int32_t acquire(Clocks& clocks, std::int32_t clock, const Step& step, int pos,
                       Strength strength);
  std::int32_t merge_item(Clocks& clocks, std::int32_t clock, int counter, const ChainItem& item,
                          Strength strength);
  std::int32_t merge(Clocks& clocks, std::int32_t clock, std::int32_t source, int component,
                     std::int64_t value);
  bool refine();
  bool refine(int counter, const std::vector<int>& waits);
  std::vector<int> necessary(AfterTable& table, const MultiWait& wait) const;
  int first_after(const Chain& chain, int component, std::int64_t position) const;
  std::int64_t release_limit(int agent, int launch, int pos) const;

  std::int64_t position(int agent, int launch, int pos) const;  // on the agent's own axis
  // Component and position that stand for "x is over".
  std::pair<int, std::int64_t> stamp(const Place& x) const;
  std::int32_t component(const Clocks& clocks, std::int32_t clock, int component) const;
  std::int32_t clock_at(const Clocks& clocks, const Place& place) const;
  const Clocks& clocks(Strength s) const {
    return s == Strength::kVisible && !visible_.arena.empty() ? visible_ : causal_;
  }

  const Timeline& timeline_;
  const InstanceGraph& graph_;
  int num_launches_, num_components_ = 0, num_rounds_ = 0, num_items_ = 0;
  std::size_t num_clocks_ = 0;
  bool weak_edges_ = false;                           // pipes or packets exist
  std::vector<int> component_of_;                     // per agent, -1: the rank's stream stands in
  std::vector<std::vector<std::int64_t>> sync_base_;  // [agent][launch]: places of launches before
  std::vector<std::vector<std::int64_t>> stream_base_;   // [rank][launch]
  std::vector<std::vector<std::int64_t>> counter_base_;  // [launch][counter]
  std::vector<std::vector<Chain>> chains_;               // [counter]
  std::vector<MultiWait> multi_waits_;
  std::vector<std::vector<int>> waits_on_;                // [counter]: indices into multi_waits_
  std::unordered_map<std::uint64_t, int> multi_wait_at_;  // (agent, launch, pos)
  std::vector<std::unordered_map<std::uint64_t, int>> packet_load_at_;  // [launch]
  Clocks causal_, visible_;
  std::vector<std::int32_t> scratch_;
};

}  // namespace stretto
