// Two ways to make one call, timed in turn on the ranks' GPUs. For Python's tune().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "session_executable.h"
#include "stretto/ops/measure/ranks_time.h"

namespace stretto::python {

struct TimedLaunch {
  std::shared_ptr<SessionExecutable> executable;
  std::vector<std::vector<std::byte*>> turns;  // arguments, of one launch after the other
  std::vector<std::int64_t> extents;
  std::string said;
};

// What `made` takes, one launch after the other, and whether that is surely less than what
// `fastest` does; without `fastest` it is. Captured in graphs, on the world's own streams; returns
// when the GPUs are idle. `ms_of_samples`: of each of the two, twice; 0: as few samples as there
// can be, for tests. Collective: the same on every rank. Errors as launches have them.
Contest contest(Session& session, const std::vector<TimedLaunch>& made,
                const std::vector<TimedLaunch>& fastest, double ms_of_samples);

}  // namespace stretto::python
