// What a fault that a kernel wrote down was. Kernels say where they waited, for which counter and
// in which block, and nothing else, which costs them nothing while all goes well; the tile and the
// rank that was to notify follow from the program.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stretto/abi/fault_record.h"
#include "stretto/base/errors.h"
#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/known_vars.h"
#include "stretto/ir/quota.h"

namespace stretto {

// Those of an instance's launches: which of these has a fault, nobody says.
class LaunchedExtents {
 public:
  void add(const std::vector<std::int64_t>& of_launch) {
    differ_ = differ_ || (any_ && of_launch != extents_);
    any_ = true;
    if (!differ_) extents_ = of_launch;
  }
  // Null where launches differ, or there was none.
  const std::vector<std::int64_t>* same() const { return any_ && !differ_ ? &extents_ : nullptr; }

 private:
  std::vector<std::int64_t> extents_;
  bool any_ = false, differ_ = false;
};

// As CPU ranks say it, in counts of one launch. The tile is left out where tables or scalars decide
// it, and where `extents` is null.
FaultRecord describe_fault(const Program& schedule, const LaunchPlan& launch, const Quotas& quotas,
                           const std::vector<std::int64_t>* extents, const DeviceFault& fault);

struct GivenUp {
  int role = -1;    // -1: on_start or on_end
  int signal = -1;  // of the program
  std::int64_t channel = -1, at_least = 0;
  int worker = -1;  // of the role; -1: not known
};

struct StuckWait {
  std::string role;  // "on_start", "on_end" or the role's name; "" where nothing waits so
  std::int64_t tile =
      -1;  // the worker's first that waits so, of any worker's where it is not known
};

// `vars`: those that the waiting rank's launch began with.
StuckWait find_stuck_wait(const Program& schedule, KnownVars vars, const GivenUp& wait);

}  // namespace stretto
