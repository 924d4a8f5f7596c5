// What a launch takes of its GPUs' power budgets. Products run at the highest clock only while the
// budget is not used up, and it is an average over longer times than a launch: one that is repeated
// takes as long as its power asks for, whatever the clock would allow. Applied to what the engine
// has run (engine.h).
#pragma once

#include "stretto/predict/engine.h"

namespace stretto::predict {

// Seconds of the budget of the GPU that needs most.
double power_seconds(const Plan& plan, const RunOptions& options);

// Where that is longer than the run, everything in it takes longer by the same factor.
void stretch(Run& run, double seconds);

}  // namespace stretto::predict
