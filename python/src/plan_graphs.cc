#include "plan_graphs.h"

#include <cstdlib>

namespace stretto::python {

bool PlanGraphs::are_wanted() {
  return wanted_ && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr;
}

}  // namespace stretto::python
