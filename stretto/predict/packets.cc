#include "stretto/predict/packets.h"

#include <fmt/format.h>

namespace stretto::predict {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

}  // namespace

void Packets::add_store(const Place& place, const Box& box, int agent) {
  events_[agent].push_back({place, box, true});
}

void Packets::add_load(const Place& place, const Box& box, int agent) {
  events_[agent].push_back({place, box, false});
}

// A load that no set of stores covers waits for a counter of its own, for ever.
std::vector<int> Packets::sources(const Event& load, Plan& plan) const {
  std::vector<int> counters;
  std::int64_t covered = 0;
  auto boxes = stored_.find(load.place);
  if (boxes != stored_.end()) {
    auto exact = boxes->second.find(load.box);
    if (exact != boxes->second.end()) return exact->second;
    for (const auto& [box, stores] : boxes->second) {
      if (!overlaps(box, load.box)) continue;
      covered += volume(intersection(box, load.box));
      counters.insert(counters.end(), stores.begin(), stores.end());
    }
  }
  if (covered < volume(load.box)) {
    counters.push_back(plan.num_counters());
    plan.counters.push_back(fmt::format("a packet of '{}' on rank {} that nobody stores",
                                        plan.program->tensors[at(load.place.tensor)].name,
                                        load.place.rank));
  }
  return counters;
}

void Packets::link(Plan& plan) {
  for (auto& [agent, events] : events_) {
    std::size_t next = 0;
    for (Step& step : plan.agents[at(agent)].steps) {
      if (step.counter >= 0 || (step.kind != StepKind::kNotify && step.kind != StepKind::kWait)) {
        continue;
      }
      const Event& event = events[next++];
      if (!event.is_store) continue;
      step.counter = plan.num_counters();
      plan.counters.push_back(fmt::format("a packet of '{}' on rank {}",
                                          plan.program->tensors[at(event.place.tensor)].name,
                                          event.place.rank));
      stored_[event.place][event.box].push_back(step.counter);
    }
  }
  for (auto& [agent, events] : events_) {
    std::vector<Step> steps;
    std::size_t next = 0;
    for (const Step& step : plan.agents[at(agent)].steps) {
      if (step.kind == StepKind::kNotify && next < events.size() && events[next].is_store &&
          step.op->code == OpCode::kStorePacket) {
        ++next;
      }
      if (step.kind != StepKind::kWait || step.counter >= 0) {
        steps.push_back(step);
        continue;
      }
      for (int counter : sources(events[next++], plan)) {
        steps.push_back(step);
        steps.back().counter = counter;
      }
    }
    plan.agents[at(agent)].steps = std::move(steps);
  }
}

}  // namespace stretto::predict
