// What a fault that a kernel wrote down was. Kernels say where they waited, for which counter and
// in which block, and nothing else, which costs them nothing while all goes well; the tile and the
// rank that was to notify follow from the program.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/abi/fault_record.h"
#include "stretto/base/errors.h"
#include "stretto/codegen/launch_plan.h"
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

}  // namespace stretto
