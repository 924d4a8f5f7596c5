#include <set>
#include <string>
#include <vector>

#include "stretto/model/transformer/step_plan.h"

namespace stretto {

std::vector<std::set<std::string>> constant_inputs(const ModelShape& shape, const StepPlan& plan) {
  std::vector<PlanLaunch> launches = plan.launches;
  launches.push_back(plan.head);
  auto is_input = [&](const PlanLaunch& l, const Binding& b) {
    const Program& program = plan.programs[l.program];
    auto tensor = static_cast<std::size_t>(program.find_tensor(b.tensor));
    return program.tensors[tensor].kind == TensorKind::kInput;
  };
  std::set<std::string> constant;  // buffers
  for (const PlanBuffer& b : model_buffers(shape)) constant.insert(b.name);
  for (const PlanBuffer& b : plan.buffers) constant.erase(b.name);
  for (const PlanLaunch& l : launches) {
    for (const Binding& b : l.bindings) {
      if (!is_input(l, b)) constant.erase(b.buffer);
    }
  }
  std::vector<std::set<std::string>> out(plan.programs.size());
  for (const PlanLaunch& l : launches) {
    for (const Binding& b : l.bindings) {
      if (constant.contains(b.buffer)) out[l.program].insert(b.tensor);
    }
  }
  for (const PlanLaunch& l : launches) {
    for (const Binding& b : l.bindings) {
      if (!constant.contains(b.buffer)) out[l.program].erase(b.tensor);
    }
  }
  return out;
}

}  // namespace stretto
