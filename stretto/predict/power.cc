#include "stretto/predict/power.h"

#include <algorithm>
#include <cmath>

namespace stretto::predict {

double PowerUse::seconds(double clock, const Timetable& timetable) const {
  return others + products * std::pow(clock, timetable.clock_power);
}

PowerUse power_use(const Timetable& timetable, const RunOptions& options) {
  auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<PowerUse> of_rank(timetable.capacity.size() / kNumUnits);
  for (const Work& w : timetable.works) {
    for (const Demand& d : w.demands) {
      if (d.is_comm && options.free_communication) continue;
      PowerUse& use = of_rank[at(d.resource / kNumUnits)];
      int unit = d.resource % kNumUnits;
      bool copied = d.by_engine && (unit == kLinkIn || unit == kLinkOut);
      (unit == kTensor ? use.products : use.others) +=
          d.amount * (copied ? timetable.copied_power : timetable.power[at(unit)]);
    }
  }
  return *std::max_element(of_rank.begin(), of_rank.end(), [](const auto& a, const auto& b) {
    return a.products + a.others < b.products + b.others;
  });
}

std::vector<double> capacity_at(double clock, const Timetable& timetable) {
  std::vector<double> capacity = timetable.capacity;
  for (std::size_t r = kTensor; r < capacity.size(); r += kNumUnits) capacity[r] *= clock;
  return capacity;
}

double throttled_seconds(const PowerUse& use, const Timetable& timetable, double at_highest,
                         double at_sustained) {
  if (use.seconds(timetable.burst, timetable) <= at_highest) return at_highest;
  if (timetable.burst == 1) return use.seconds(1, timetable);
  // What SMs compute goes with the clock, the rest does not: rest + computed / clock.
  double computed = (at_sustained - at_highest) / (1 - 1 / timetable.burst);
  double rest = at_sustained - computed;
  constexpr double kLowest = 0.2;
  constexpr int kSteps = 40;
  double low = kLowest, high = timetable.burst;
  for (int i = 0; i < kSteps; ++i) {
    double clock = (low + high) / 2;
    bool affordable = rest + computed / clock >= use.seconds(clock, timetable);
    (affordable ? low : high) = clock;
  }
  return std::max(rest + computed / low, use.seconds(low, timetable));
}

void stretch(Run& run, double seconds) {
  double factor = seconds / run.seconds;
  if (!(factor > 1)) return;
  run.seconds = seconds;
  for (AgentTime& a : run.agents) {
    a.begin *= factor;
    a.end *= factor;
    a.waited *= factor;
  }
  for (TimedSpan& s : run.spans) {
    s.begin *= factor;
    s.end *= factor;
  }
  for (TimedNotify& n : run.notifies) n.time *= factor;
}

}  // namespace stretto::predict
