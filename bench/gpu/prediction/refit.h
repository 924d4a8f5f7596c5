// How far predictions on a machine file lie from what was measured before, and the machine file
// that fits half of it: no GPU is needed, so a change of the model is judged in a minute.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu/prediction/points.h"

namespace stretto::bench {

struct RefitOptions {
  std::vector<std::string> parameters;  // that are fitted (predict/calibrate.h); none: no fit
  int rounds = 6;
  std::string only;            // labels that contain this
  std::int64_t most_rows = 0;  // 0: all; points with more rows take long to predict
};

struct Refit {
  predict::Machine machine;
  std::vector<Point> fitted, held_out;  // predicted on `machine`
};

// Every second shape of an operator is fitted to, with all of its configs; the others are held out.
// Points without a measurement are left out. UserError of predict::fit().
Refit refit(const predict::Machine& start, std::vector<Point> points, const RefitOptions& options);

}  // namespace stretto::bench
