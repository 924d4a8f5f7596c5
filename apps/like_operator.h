// A program of the user's that does what an operator of the catalog does: its inputs and outputs
// have the operator's names, dtypes and shapes. So the operator's reference checks its results, and
// the operator's unfused path is what it is compared with (`stretto bench FILE --like OP`). The
// references are the tests': this is the one file of the command that knows them.
#pragma once

#include <memory>
#include <string>

#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/runtime/world.h"

namespace stretto {

// What in the caller's tensors differs between `program` and the operator at `shape`; "": nothing.
std::string difference_from(const OperatorInfo& op, const OpShape& shape, const Program& program);

// UserError with that difference.
void check_like(const OperatorInfo& op, const OpShape& shape, const Program& program);

// Run `program` on the inputs that the operator's case at `shape` has. False where the operator's
// reference takes too long; UserError where results differ from it, and as check_like.
bool checked_on_cpu(const OperatorInfo& op, const OpShape& shape, const Program& program,
                    const std::shared_ptr<World>& world);
bool checked_on_gpus(const OperatorInfo& op, const OpShape& shape, const Program& program,
                     GpuWorld& world);

}  // namespace stretto
