#include "plan_graphs.h"

#include <cstdlib>
#include <string_view>

namespace stretto::python {

bool PlanGraphs::are_wanted() {
  const char* wanted = std::getenv("STRETTO_PLAN_GRAPHS");
  return wanted != nullptr && std::string_view(wanted) == "1" &&
         std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr;
}

}  // namespace stretto::python
