// What a launch of a program would cost on a machine: the answer of the fourth reader. Comes after
// lower() of compiler.h; the command line, the chooser and the trace use it.
#pragma once

#include <string>
#include <vector>

#include "stretto/predict/event_loop.h"
#include "stretto/predict/machine.h"
#include "stretto/predict/timetable.h"
#include "stretto/predict/timetable_builder.h"

namespace stretto::predict {

struct RoleSummary {
  std::string name;
  int num_workers = 0;
  // Sums over the role's workers on all ranks; a worker with several agents counts its consumers.
  double busy_ms = 0, wait_ms = 0;
};

// What each kind of resource needs at least, on the rank that needs most of it.
struct Floors {
  double tensor_ms = 0, l2_ms = 0, hbm_ms = 0, link_ms = 0, copy_ms = 0;
};

struct Prediction {
  double time_ms = 0;
  double exposed_comm_ms = 0;  // what the launch would save if communication took no time
  // "tensor", "hbm", "l2", "nvlink", "copy_engine": used for more than half of the time, and more
  // than the others; otherwise "sms" (workers are busy one by one) or "latency".
  std::string bound_by;
  Floors floors;
  std::vector<RoleSummary> roles;
  Timetable timetable;
  Run run;
};

struct PredictOptions {
  TimetableOptions timetable;
  bool record = false;  // spans and notifies, for a timeline
};

// Predicts a launch. Errors as build_timetable and run_timetable.
Prediction predict(const Lowered& program, const Machine& machine,
                   const PredictOptions& options = {});

// One lane per role of the rank that ends last: how many of its workers are busy over time.
//   gemm    |..:######################:.|
std::string lane_picture(const Prediction& prediction, int width = 72);

}  // namespace stretto::predict
