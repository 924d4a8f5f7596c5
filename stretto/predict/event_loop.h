// Runs a timetable: a discrete-event simulation of one launch on all ranks. Deterministic: the same
// timetable gives the same result, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/predict/timetable.h"

namespace stretto::predict {

// A stretch of an agent's time, in seconds since the launch was asked for.
struct TimedSpan {
  int agent = -1;  // in the timetable
  std::int64_t tile = -1;
  const Op* wait = nullptr;  // null: a tile
  int counter = -1;          // a wait's
  double begin = 0, end = 0;
};

struct TimedNotify {
  int agent = -1;
  const Op* op = nullptr;
  int counter = -1;
  double time = 0;
};

struct AgentTime {
  double begin = 0, end = 0;
  double waited = 0;  // for signals, and for slots to be filled
};

struct Run {
  double seconds = 0;  // until the last rank's launch has ended
  std::vector<AgentTime> agents;
  std::vector<TimedSpan> spans;  // where asked for, by end
  std::vector<TimedNotify> notifies;
};

struct RunOptions {
  bool free_communication = false;  // links, copies and remote signals take no time
  bool record = false;              // spans and notifies
};

// Rejected, naming who waits for what, where the launch would never end.
Run run_timetable(const Timetable& timetable, const RunOptions& options = {});

}  // namespace stretto::predict
