// Makes a step plan: buffers, programs, and nodes that name the buffers they bind, in order. What
// is wrong with the plan is check.h's to say, which comes after. A model's families
// (model/transformer/step_builder.h) make their plans with it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/step/plan.h"

namespace stretto::step {

// As Binding, by names.
struct NamedBinding {
  std::string tensor, buffer;
  Size from = {};
};

class PlanBuilder {
 public:
  PlanBuilder(std::string name, int group_size, int num_ranks);

  int extent(std::string name, std::int64_t bound);  // returns its index, as program() does
  int program(Program program);
  // Before the first node that binds it. Its shape may be that at the bounds (finish()).
  void buffer(Buffer buffer);
  // InternalError for a buffer that there is not.
  void node(std::string name, int program, std::vector<Size> extents,
            const std::vector<NamedBinding>& bindings);
  void end_section(std::string name);         // of the nodes since the one before
  const Plan& plan() const { return plan_; }  // so far

  // A buffer of the step takes its shape, in the step's extents, from the first tensor that is
  // bound to all of it.
  Plan finish();

 private:
  void shape_by_tensors(int buffer);
  std::vector<Size> shape_at(const Node& node, int tensor) const;

  Plan plan_;
  std::map<std::string, int> index_;  // of buffers
};

}  // namespace stretto::step
