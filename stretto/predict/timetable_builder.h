// Lowered program + machine -> timetable: walks every role's tiles for every rank, worker and
// agent once, folds what lies between signals into pieces of work, and turns costs into demands on
// the machine's resources.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/predict/launch_tables.h"
#include "stretto/predict/machine.h"
#include "stretto/predict/timetable.h"

namespace stretto::predict {

struct TimetableOptions {
  std::vector<std::int64_t> extents;  // empty: extents at their bounds, scalars zero
  bool eager = false;                 // launched one by one instead of from a graph
  LaunchTables tables = {};           // what is known of its tables
};

// Tables of which nothing is known hold the largest values that their contracts allow. UserError
// where the machine is too small for the program, Rejected for what no launch could do: a channel
// or rank out of range.
Timetable build_timetable(const Lowered& program, const Machine& machine,
                          const TimetableOptions& options = {});

std::vector<std::int64_t> default_extents(const Program& program);

}  // namespace stretto::predict
