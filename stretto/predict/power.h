// What the power budget of a GPU makes of a launch that is repeated. SMs run at the highest clock
// until the budget is used up: then the clock falls, which products and other work of SMs feel and
// copies and latencies do not, to where the launch takes as long as its products and the bytes it
// moves ask of the budget. At a higher clock products take more of it, as the voltage rises, so
// that time in which SMs wait is made up for in part. After the simulation (event_loop.h).
#pragma once

#include <vector>

#include "stretto/predict/event_loop.h"

namespace stretto::predict {

// What the launch asks of the power budget of the GPU that it asks most of, in seconds.
struct PowerUse {
  double products = 0, others = 0;  // at the sustained clock

  // At `clock` times the sustained one.
  double seconds(double clock, const Timetable& timetable) const;
};
PowerUse power_use(const Timetable& timetable, const RunOptions& options);

// What there is of the resources where the SMs have `clock` times their highest clock.
std::vector<double> capacity_at(double clock, const Timetable& timetable);

// How long a launch takes that was simulated at the highest and at the sustained clock.
double throttled_seconds(const PowerUse& use, const Timetable& timetable, double at_highest,
                         double at_sustained);

// The run as if it had taken `seconds`, if that is longer.
void stretch(Run& run, double seconds);

}  // namespace stretto::predict
