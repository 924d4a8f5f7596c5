// A frame's cost as a piece of work on one worker: how long it takes alone, and what it takes from
// the resources that workers share. The one place where figures of the machine meet costs.
#pragma once

#include "stretto/predict/frame.h"
#include "stretto/predict/timetable.h"

namespace stretto::predict {

struct WorkerRate {
  const Machine* machine = nullptr;
  int rank = 0;
  bool by_copy_engine = false;
  bool beside = false;    // another role's worker, on its SM
  bool shared = false;    // its SM, with a worker of a role beside it
  double num_sms = 1;     // of one worker
  double pipe_bytes = 0;  // in flight at most between agents; 0: no pipe
};

// kPut: loads ahead, nobody waits. kGet: loads come from elsewhere, products and elementwise work
// overlap. kPlain: one after the other.
enum class WorkKind : std::uint8_t { kPlain, kPut, kGet };

// HBM reads are added later, when the L2 model knows them.
Work make_work(const Frame& frame, WorkKind kind, const WorkerRate& worker);

}  // namespace stretto::predict
