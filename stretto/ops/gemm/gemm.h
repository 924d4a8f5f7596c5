// c = f(a * b^T) on every rank by itself: the linear layer without communication. The operators
// that communicate (ag_gemm, gemm_rs, gemm_ar) share its tile and its options.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct GemmDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows; each launch has 0 <= m <= this
  std::int64_t n = 0, k = 0;
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool bias = false;
  bool swiglu = false;               // silu(a * b_gate^T) * (a * b_up^T)
  bool residual = false;             // + residual[m, n], of c's dtype
  Scaling scaling = Scaling::kNone;  // for fp8 factors
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  friend bool operator==(const GemmDesc&, const GemmDesc&) = default;
};

struct GemmConfig {
  MainLoop loop;
  // Workers that share a tile by steps of k, for products with fewer tiles than SMs. One of them
  // adds what the others stored, in the order of k: the same bits at every launch.
  int split_k = 1;
  // The weights are the left factor of the tensor core, which takes 64 rows of them at a time and
  // any multiple of 8 rows of a: for few rows, which would leave a tile of 128 half empty. Without
  // bias, swiglu, residual and scaling.
  bool swap_ab = false;
  friend bool operator==(const GemmConfig&, const GemmConfig&) = default;
};

NamedFields fields_of(GemmDesc& desc);
std::string to_string(const GemmDesc& desc);
NamedFields fields_of(GemmConfig& config);
GemmConfig default_config(const GemmDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs a [m, k]; b [n, k] (swiglu: b_gate and b_up), bias [n] (bias_gate, bias_up),
// residual [m, n]; with scaling, scale_a and scale_b (scale_b_gate, scale_b_up), f32, in the shapes
// that Scaling says; output c [m, n]. Accumulated in fp32, rounded once. UserError naming the field
// of a bad desc or config.
Program gemm(const GemmDesc& desc, const GemmConfig& config);

}  // namespace stretto
