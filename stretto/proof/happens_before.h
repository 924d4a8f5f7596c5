// Which event must come before which, over a window of launches, as vector clocks.
//
// Edges: an agent's program order; per rank launch start -> on_start -> roles -> on_end -> launch
// end -> next start; and notify -> wait by necessity: a notify x happens-before a wait w exactly
// when w's threshold cannot be reached without x, that is, when the amounts of all notifies of the
// counter that are neither x, nor after x, nor after w, do not add up to it. The order is the least
// fixpoint: each edge found can only shrink those sums. A chain of notifies that the window shows
// no end of counts as endless, so what is derived holds for every continuation.
//
// What is derived holds with launches before these, too, of whatever sizes: program order and
// launch order stay; what a wait asks for grows by what the launches before add, which is the same
// for every launch, and what can be there without a given notify grows by no more. So what is found
// of the first launches of a sequence holds wherever the same sequence begins (launch_orders.h).
//
// Order in time is not all: what an agent did before a notify is over for the waiter only where the
// lowered code takes the steps that this needs, and whoever comes after the wait has to be covered
// by its steps too (sync_power.h). So there is one set of clocks for order in time, and one for
// every kind of access that the rows of the table carry differently: a packet carries nothing but
// itself, a pipe's put and release nothing that the agent wrote elsewhere, and no edge reaches
// further than its scope.
//
// Where tables decide what is waited for, an agent's waits of some choices are there
// (table_choices.h) but take no part in the order: what is derived holds for every table. Only
// whoever comes after such a wait of its own agent, in a case that has the wait's facts, may rely
// on it. Notifies are the same for all tables.
//
// Memory: one component per agent that notifies, one per rank for everything else; clocks exist
// only where a wait changed something and are shared.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/proof/necessary_notifies.h"
#include "stretto/proof/sync_edges.h"
#include "stretto/proof/sync_power.h"
#include "stretto/proof/timeline.h"
#include "stretto/proof/vector_clocks.h"

namespace stretto {

// A point in an agent's program order: after `pos` synchronisation events of launch `launch`.
struct ProgramPoint {
  int agent, launch, pos;
  Landing landed = {};  // of a load into a slot, in the same launch
};

// A copy shares what was found, and notes for itself what it finds when asked: one for each thread.
class HappensBefore {
 public:
  // `execution` must have finished. Keeps references to both.
  HappensBefore(const Timeline& timeline, const Execution& execution,
                const SyncPowers& powers = powers_of(sync_table()));

  // Are accesses of the kind at `x` over before what is at `y` begins? For the same agent: through
  // synchronisation alone (notify to itself, or the launch's end), program order not counting.
  // `choice`: that of what is at `y`, and for start_before too.
  bool before(const ProgramPoint& x, const ProgramPoint& y, Past past, Path path,
              int choice = TableChoices::kAlways) const;
  // The rank's launch start / end against a point on any rank.
  bool start_before(int rank, int launch, const ProgramPoint& y, Path path,
                    int choice = TableChoices::kAlways) const;
  // `when`: what is so in the launch whenever there is anything of x, on all ranks (Access::when).
  // Waits under such facts have happened then.
  bool before_end(const ProgramPoint& x, int rank, int launch, Past past,
                  int when = TableChoices::kAlways) const;
  // The same as before(), of a later launch, by way of the end of x's launch on some rank.
  bool before_by_end(const ProgramPoint& x, const ProgramPoint& y, Past past, Path path, int when,
                     int choice) const;
  // What is known at a rank's end of a launch, and whether it reaches a rank's launch start: the
  // order of whole launches (launch_promises.h). Not of kBulkLoad.
  std::int32_t knowledge_at_end(int rank, int launch, Past past) const;
  bool start_reaches(int rank, int launch, Past past, std::int32_t knowledge) const;
  // Accesses within an agent with nothing but its fences between them.
  bool fenced(const ProgramPoint& x, const ProgramPoint& y, Past past, Path path,
              int choice = TableChoices::kAlways) const;

  // Whether a packet that one agent stores comes with all that another has to know to load it.
  bool packet_arrives(int from, int to) const;

  // before(), in parts, for many points at once: x is over before y where what y knows reaches x's
  // mark. Not of kBulkLoad. Points with the same knowledge rely on the same.
  struct Mark {
    int component;
    std::int64_t position;
    friend auto operator<=>(const Mark&, const Mark&) = default;
  };
  Mark mark(const ProgramPoint& x) const;
  // The same of any access: as what it is passed on that it is over, and the mark. None for a load
  // by TMA into a slot that nobody gets.
  std::optional<std::pair<Past, Mark>> over_at(const ProgramPoint& x, Past past) const;
  std::int32_t knowledge(const ProgramPoint& y, Past past, Path path, int choice) const;
  bool reaches(Past past, std::int32_t knowledge, const Mark& mark) const;
  // The first kind of which the table carries the same.
  Past carried_alike(Past past) const;

  // What the launch's waits for signals have been found to need: agent, launch and position of the
  // last notify of each sender. All that other launches decide of the order within this one. Many
  // waits need the same, so that stands there once, in the order in which it is first needed.
  struct Needs {
    using Notify = std::array<int, 3>;
    using Wait = std::array<int, 3>;  // agent, position, and which of the sets
    std::vector<Wait> waits;
    std::vector<std::vector<Notify>> sets;
    friend bool operator==(const Needs&, const Needs&) = default;
  };
  Needs needs_of(int launch) const;

  // What the graphs' choices mean, and more that are asked about: of this order alone, so that
  // several may be looked at side by side.
  TableChoices& choices() const { return choices_; }
  // Facts of one value each that waits before `y` go by, one for each entry.
  std::vector<int> entries_waited_for(const ProgramPoint& y) const;

  // Rows of the table of which one alone, if it did everything, would make `holds` true.
  using Holds = std::function<bool(const HappensBefore&)>;
  std::vector<SyncRow> missing_rows(const Holds& holds) const;

  std::size_t num_clocks() const { return num_clocks_; }
  int num_components() const { return num_components_; }
  int num_rounds() const { return num_rounds_; }

 private:
  // Of these there may be millions.
  struct MultiWait {
    int agent, launch, pos, counter;
    // What it needs: which of MultiWaits::needed. The same for waits of a counter that need the
    // same, once anything is known to be needed.
    int alike = 0;
  };
  struct Points {
    std::vector<std::vector<std::int32_t>> point;  // [agent][offset(launch) + pos]
    // There: own accesses before are over. Not of order in time, where they always are.
    std::vector<std::vector<std::int32_t>> released;
    std::vector<std::vector<std::int32_t>> start, end;  // [rank][launch]
  };
  // Clock ids per point, for one kind of accesses.
  struct Clocks {
    Past past = Past::kOrder;
    VectorClocks vectors;
    std::shared_ptr<Points> at = std::make_shared<Points>();
    std::vector<std::int32_t> stream, roles, joined, ended;  // [rank]: the launch under way
    // By waiting_key(): clocks with an item, clocks with what MultiWait::alike stands for, and that
    // alone.
    std::unordered_map<std::uint64_t, std::int32_t> merged, met;
    std::unordered_map<std::uint64_t, VectorClocks::Source> told;
    std::map<std::tuple<int, int, int, int>, std::int32_t> of_choice;  // agent, launch, pos, choice
    // What a rank's sized waits tell: of one choice, and of all that are under a choice's facts.
    std::map<std::tuple<int, int, int>, std::int32_t> of_sized, under;  // rank, launch, choice
  };

  // An agent's waits and fences of some choices: positions.
  struct ChoiceWaits {
    std::vector<int> all;
    std::unordered_map<int, std::vector<int>> of_choice;  // those that it has for certain
  };

  // Waits for signals that are there at some sizes only, by choice.
  using SizedWaits = std::map<int, std::vector<Step>>;
  const SizedWaits& sized_waits(int rank, int launch) const;
  std::int32_t told_under(Clocks& clocks, int rank, int launch, int choice) const;

  void number_components();
  void build_chains();
  void find_multi_waits();
  const MultiWait& multi_wait(const ProgramPoint& wait) const;
  const std::vector<int>& needed(const MultiWait& wait) const {
    return multi_waits_->needed[static_cast<std::size_t>(wait.alike)];
  }
  void index_packets();
  void compute_stronger();
  void compute_clocks(Clocks& clocks, Past past);
  std::int32_t begin_agent(Clocks& clocks, const Step& step);
  void end_agent(Clocks& clocks, const Step& step, std::int32_t clock, std::int64_t limit);
  std::int32_t acquire(Clocks& clocks, std::int32_t clock, const Step& step, int pos) const;
  std::uint64_t waiting_key(std::int32_t clock, int awaited, int waiter) const;
  VectorClocks::Source told(Clocks& clocks, const MultiWait& wait) const;
  std::vector<const NotifyChain::Item*> last_needed(const MultiWait& wait) const;
  std::int32_t acquire_packets(Clocks& clocks, std::int32_t clock, const Step& step, int pos) const;
  // The notify with which the counter gets to `threshold`.
  static const NotifyChain::Item& first_to_reach(const NotifyChain& chain, std::int64_t threshold);
  std::int32_t merge_item(Clocks& clocks, std::int32_t clock, int counter,
                          const NotifyChain::Item& item, int waiter) const;
  std::optional<VectorClocks::Source> source_of(const Clocks& clocks, int counter,
                                                const NotifyChain::Item& item, int waiter) const;
  static std::int32_t merge(Clocks& clocks, std::int32_t clock, std::int32_t source, int component,
                            std::int64_t value);
  bool refine();
  bool refine(int counter, const std::vector<int>& waits);

  // Where the slot of a kPipePut is got, since its bulk load ends there.
  std::optional<ProgramPoint> landed(const ProgramPoint& put) const;
  // What `y` may rely on: the clock of its agent after the last event that covers it.
  std::int32_t covered_clock(Clocks& clocks, const ProgramPoint& y, Path path, int choice) const;
  // Waits of some choices.
  const std::vector<int>& waits_of(const ProgramPoint& y, int choice) const;
  std::int32_t clock_in_choice(Clocks& clocks, const ProgramPoint& y, int choice) const;

  std::int64_t position(int agent, int launch, int pos) const;  // on the agent's own axis
  // Component and position that stand for "x is over".
  std::pair<int, std::int64_t> stamp(const ProgramPoint& x) const;
  std::int32_t component(const Clocks& clocks, std::int32_t clock, int component) const;
  std::int32_t clock_at(const Clocks& clocks, const ProgramPoint& point) const;
  std::size_t point_idx(const ProgramPoint& point) const;
  Clocks& clocks(Past past) const {
    int which = which_[static_cast<std::size_t>(past)];
    return which < 0 ? causal_ : stronger_[static_cast<std::size_t>(which)];
  }

  const Timeline& timeline_;
  const Execution& execution_;
  const InstanceGraph& graph_;
  SyncEdges edges_;
  bool passes_on_all_ = false;  // whoever learns of a notify learns what its agent knew
  int num_launches_, num_components_ = 0, num_rounds_ = 0, num_items_ = 0;
  std::size_t num_clocks_ = 0;
  std::vector<int> component_of_;                     // per agent, -1: the rank's stream stands in
  std::vector<std::vector<std::int64_t>> sync_base_;  // [agent][launch]: points of launches before
  std::vector<std::vector<std::int64_t>> stream_base_;             // [rank][launch]
  std::vector<std::vector<std::int64_t>> counter_base_;            // [launch][counter]
  std::shared_ptr<std::vector<std::vector<NotifyChain>>> chains_;  // [counter]
  struct MultiWaits {
    std::vector<MultiWait> all;
    std::vector<std::vector<int>> on;  // [counter]: which
    // [agent]: by point_idx(), ascending.
    std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> at;
    // Per chain, how many of its first items are necessary.
    std::vector<std::vector<int>> needed;
  };
  std::shared_ptr<MultiWaits> multi_waits_;
  // [agent][pos]: into packet_loads, or -1; nothing of an agent without. [launch]: those alike
  // share it.
  using LoadAt = std::vector<std::vector<std::int32_t>>;
  std::vector<std::shared_ptr<const LoadAt>> packet_load_at_;
  // Choices, and clocks of choices, are added when first asked for.
  mutable TableChoices choices_;
  mutable Clocks causal_;
  mutable std::vector<Clocks> stronger_;
  std::array<int, kNumPasts> which_{-1, -1, -1, -1};  // per Past, into stronger_
  // Found when first asked for.
  mutable std::unordered_map<const AgentTrace*, ChoiceWaits> waits_of_choice_;
  mutable std::map<std::pair<int, int>, SizedWaits> sized_waits_;  // by rank and launch
};

}  // namespace stretto
