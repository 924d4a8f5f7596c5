// Products of bf16 by the processor's own bf16 instructions (AVX512-BF16, AMX), through oneDNN.
// Internal to dot.
#pragma once

#include "stretto/executor/kernels/dot.h"

namespace stretto::kernels {

bool has_native_bf16();

// args as in dot(), both operands bf16 with a stride of 1 in one direction, no extent 0. Only where
// has_native_bf16(). oneDNN's refusal is an InternalError.
void dot_native_bf16(const DotArgs& args);

}  // namespace stretto::kernels
