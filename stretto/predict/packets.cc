#include "stretto/predict/packets.h"

#include <fmt/format.h>

#include "stretto/base/at.h"
#include "stretto/proof/overlap.h"

namespace stretto::predict {
void Packets::add_store(const OnRank& place, const Box& box, int agent) {
  events_[agent].push_back({place, box, true});
}

void Packets::add_load(const OnRank& place, const Box& box, int agent) {
  events_[agent].push_back({place, box, false});
}

void Packets::number_stores(Timetable& timetable) {
  for (auto& [agent, events] : events_) {
    std::size_t next = 0;
    for (Step& step : timetable.agents[at(agent)].steps) {
      if (step.counter >= 0 || (step.kind != StepKind::kNotify && step.kind != StepKind::kWait)) {
        continue;
      }
      const Event& event = events[next++];
      if (!event.is_store) continue;
      step.counter = timetable.num_counters();
      timetable.counters.push_back(
          fmt::format("a packet of '{}' on rank {}",
                      timetable.program->tensors[at(event.place.tensor)].name, event.place.rank));
      stored_[event.place][event.box].push_back(step.counter);
    }
  }
}

void Packets::find_sources() {
  for (const auto& [agent, events] : events_) {
    for (const Event& event : events) {
      if (!event.is_store) sources_[event.place].try_emplace(event.box);
    }
  }
  auto boxes_of = [](const auto& by_box) {
    std::vector<Box> boxes;
    for (const auto& [box, of_box] : by_box) boxes.push_back(box);
    return boxes;
  };
  for (auto& of_place : sources_) {
    auto& loads = of_place.second;  // a plain name, which clang 14 can capture
    const auto& stores = stored_[of_place.first];
    const std::vector<Box> loaded = boxes_of(loads), stored = boxes_of(stores);
    for_each_overlap(loaded, stored, [&](std::size_t load, std::size_t store) {
      Sources& sources = loads.at(loaded[load]);
      const std::vector<int>& counters = stores.at(stored[store]);
      sources.counters.insert(sources.counters.end(), counters.begin(), counters.end());
      sources.covered += volume(intersection(loaded[load], stored[store]));
    });
  }
}

// A load that no set of stores covers waits for a counter of its own, for ever.
std::vector<int> Packets::counters_of(const Event& load, Timetable& timetable) const {
  const Sources& sources = sources_.at(load.place).at(load.box);
  std::vector<int> counters = sources.counters;
  if (sources.covered < volume(load.box)) {
    counters.push_back(timetable.num_counters());
    timetable.counters.push_back(fmt::format("a packet of '{}' on rank {} that nobody stores",
                                             timetable.program->tensors[at(load.place.tensor)].name,
                                             load.place.rank));
  }
  return counters;
}

void Packets::link(Timetable& timetable) {
  number_stores(timetable);
  find_sources();
  for (auto& [agent, events] : events_) {
    std::vector<Step> steps;
    std::size_t next = 0;
    for (const Step& step : timetable.agents[at(agent)].steps) {
      if (step.kind == StepKind::kNotify && next < events.size() && events[next].is_store &&
          step.op->code == OpCode::kStorePacket) {
        ++next;
      }
      if (step.kind != StepKind::kWait || step.counter >= 0) {
        steps.push_back(step);
        continue;
      }
      for (int counter : counters_of(events[next++], timetable)) {
        steps.push_back(step);
        steps.back().counter = counter;
      }
    }
    timetable.agents[at(agent)].steps = std::move(steps);
  }
}

}  // namespace stretto::predict
