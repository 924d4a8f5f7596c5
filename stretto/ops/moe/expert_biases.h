// Biases of experts in a tile program: what the products of grouped_gemm.cc and of fused_layers.h
// add to their sums before the gate, or before they are rounded.
#pragma once

#include <vector>

#include "stretto/lang/program_builder.h"

namespace stretto {

// Inputs bias, or bias_gate and bias_up, of this shape [experts, columns]; none without biases.
std::vector<TensorRef> bias_inputs(ProgramBuilder& p, bool bias, bool swiglu, DType dtype,
                                   const std::vector<Index>& shape);
// Of the expert's columns from `col` on; sums are f32.
void add_bias(ProgramBuilder& p, const TensorRef& bias, const Index& expert, const Index& col,
              Value& sum);
// Each sum its own, where there are biases.
void add_biases(ProgramBuilder& p, const std::vector<TensorRef>& biases, const Index& expert,
                const Index& col, std::vector<Value>& sums);

}  // namespace stretto
