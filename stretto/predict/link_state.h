// What is under way in the links between the agents of a worker. Part of the event loop.
#pragma once

#include <cstdint>
#include <deque>

#include "stretto/predict/timetable.h"

namespace stretto::predict {

// Slots offered by one kPut.
struct Group {
  std::uint64_t serial = 0;
  const Work* work = nullptr;
  double count = 0, left = 0;    // slots, and those not yet taken
  double loaded = 0, ahead = 0;  // of those left: loaded, and to be loaded before anybody asks
  int flow = -1;
  double flow_slots = 0;
};

// The slots of a link, or of several that share them.
struct RingState {
  double outstanding = 0;  // offered and not taken
  int producer = -1;       // that waits here
  bool producer_has_offered = false;
};

struct LinkState {
  std::deque<Group> groups;
  int consumer = -1;  // that waits here
};

}  // namespace stretto::predict
