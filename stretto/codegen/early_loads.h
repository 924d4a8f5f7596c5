// What of a kernel may begin before the launch that the stream holds before it has ended
// (docs/decisions/0006-launches-that-start-early.md): loads of inputs that no launch writes, such
// as weights, into the first slots of a pipe.
//
// And what of a role may begin before its own waits for other ranks: loads of its inputs.
//
// After: agent_text.h writes those loads, the wait for the launch before, and then the rest.
#pragma once

#include <vector>

#include "stretto/codegen/role_plan.h"

namespace stretto {

// Whether a region is of an own tensor among those marked, by tensor.
bool is_constant(const Region& region, const std::vector<bool>& constant);

// The groups of pipes, as indices into plan.groups, whose slots the role's producer may begin to
// fill ahead. They have the same number of slots and are put together in one block, once each, and
// everything that leads there is known from the launch's parameters: the producer can go the same
// way twice.
std::vector<int> early_groups(const Role& role, const RolePlan& plan,
                              const std::vector<bool>& constant);

// What the agents of a role do about it.
struct EarlyLoads {
  std::vector<int> groups;
  std::vector<bool> tensors;  // by tensor: what is loaded ahead into their slots
  // The launch before was waited for: they come before the role's own waits. Else agents wait for
  // it themselves, the producer once it has begun the loads.
  bool launched = true;
};
// `constant`: by tensor, where the role may begin before the launch before has ended; else empty.
EarlyLoads early_loads(const Program& program, const Role& role, const RolePlan& plan,
                       const std::vector<bool>& constant);

}  // namespace stretto
