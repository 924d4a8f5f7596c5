#include "plan_graphs.h"

#include <cstdlib>
#include <string_view>

namespace stretto::python {

bool PlanGraphs::are_wanted() {
  const char* asked = std::getenv("STRETTO_PLAN_GRAPHS");
  const bool by_variable = asked != nullptr && std::string_view(asked) == "1";
  const int told = wanted_;
  return (told < 0 ? by_variable : told == 1) &&
         std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr;
}

}  // namespace stretto::python
