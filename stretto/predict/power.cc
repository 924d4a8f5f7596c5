#include "stretto/predict/power.h"

#include <algorithm>

namespace stretto::predict {

double power_seconds(const Plan& plan, const RunOptions& options) {
  auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<double> of_rank(plan.capacity.size() / kNumUnits, 0);
  for (const Work& w : plan.works) {
    for (const Demand& d : w.demands) {
      if (d.is_comm && options.free_communication) continue;
      of_rank[at(d.resource / kNumUnits)] += d.amount * plan.power[at(d.resource % kNumUnits)];
    }
  }
  return *std::max_element(of_rank.begin(), of_rank.end());
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
