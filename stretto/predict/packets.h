// Packets as counters: a packet load waits for every store whose box overlaps its own. While the
// timetable is built, stores and loads are noted with the steps that stand for them; afterwards
// link() numbers the counters. Part of the timetable builder.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "stretto/predict/timetable.h"
#include "stretto/proof/instance_graph.h"

namespace stretto::predict {

class Packets {
 public:
  struct OnRank {
    int tensor = -1, rank = -1;
    auto operator<=>(const OnRank&) const = default;
  };

  // The step is a kNotify (kWait), whose counter is filled in by link().
  void add_store(const OnRank& place, const Box& box, int agent);
  void add_load(const OnRank& place, const Box& box, int agent);
  // Steps without a counter are taken in the order in which they were noted, agent by agent.
  void link(Timetable& timetable);

 private:
  struct Event {
    OnRank place;
    Box box;
    bool is_store = false;
  };
  // Of a load: the counters of the stores that overlap it, and how much of it these cover.
  struct Sources {
    std::vector<int> counters;
    std::int64_t covered = 0;
  };

  void number_stores(Timetable& timetable);
  void find_sources();
  std::vector<int> counters_of(const Event& load, Timetable& timetable) const;

  std::map<int, std::vector<Event>> events_;                  // by agent
  std::map<OnRank, std::map<Box, std::vector<int>>> stored_;  // counters
  std::map<OnRank, std::map<Box, Sources>> sources_;
};

}  // namespace stretto::predict
