// What the recorder keeps, shared between recorder.cc, which fills it, and trace_json.cc, which
// writes it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "stretto/runtime/recorder.h"

namespace stretto {

// Deques, because a growing vector would stop the rank for a copy in the middle of a measurement.
struct alignas(64) RankEvents {
  std::deque<Span> spans;
  std::deque<NotifyMark> marks;
  std::int64_t num_dropped = 0;
};

struct Recorder::State {
  std::vector<RankEvents> ranks;  // [world], each written by its rank's thread alone
  std::size_t max_events = 0;     // per rank
  std::mutex names_mutex;
  std::unordered_set<std::string> names;
};

}  // namespace stretto
