// The passes from tile IR to schedule IR, in order: open pipeline.cc to see the whole way of the
// program.
#pragma once

#include <vector>

#include "stretto/passes/pass.h"

namespace stretto {

const std::vector<Pass>& schedule_pipeline();

// Runs the pipeline: after each pass the program is verified, timed and handed to `after` (may be
// empty).
Program run_pipeline(Program program, const AfterPass& after = {});

}  // namespace stretto
