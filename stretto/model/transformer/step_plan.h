// What a forward step is, as data: the buffers it works on and the launches over them, in order.
// Two shapes of step: replicated rows (GEMM + all-reduce), and rows that are spread over the ranks
// (all-gather + GEMM, GEMM + reduce-scatter, or around attention whole weights and all-to-alls).
//
// Before: step_builder.h. After: batch_plan.h, and batch_runner.h, which runs it; the command
// predicts and prints it.
#pragma once

#include <cstdint>

#include "stretto/model/transformer/step_builder.h"

namespace stretto {

// A step of at most `bound` rows. Its constants and states are model_buffers(shape), but for states
// that other ranks address.
ModelStep plan_step(const ModelShape& shape, std::int64_t bound);

}  // namespace stretto
