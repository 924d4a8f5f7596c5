// c = [f(a * b^T) of rank 0 | f(a * b^T) of rank 1 | ...] on every rank: a linear layer whose
// columns are spread over the ranks and whose result every rank needs whole. Each rank multiplies
// its own columns, and its SMs store tiles on all ranks as they are done.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct GemmAgDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows; each launch has 0 <= m <= this
  std::int64_t n = 0;  // columns that this rank multiplies; of all ranks P times as many
  std::int64_t k = 0;
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool bias = false;
  Scaling scaling = Scaling::kNone;  // for fp8 factors
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  friend bool operator==(const GemmAgDesc&, const GemmAgDesc&) = default;
};

struct GemmAgConfig {
  MainLoop loop;
  friend bool operator==(const GemmAgConfig&, const GemmAgConfig&) = default;
};

NamedFields fields_of(GemmAgDesc& desc);
std::string to_string(const GemmAgDesc& desc);
NamedFields fields_of(GemmAgConfig& config);
GemmAgConfig default_config(const GemmAgDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs a [m, k], b [n, k] or [k, n], bias [n], each rank's own; with scaling scale_a
// and scale_b as Scaling says. Output c [m, P * n], symmetric: the columns of rank r are
// [r * n, (r + 1) * n), the same bits on every rank. UserError naming the field of a bad desc or
// config.
Program gemm_ag(const GemmAgDesc& desc, const GemmAgConfig& config);

}  // namespace stretto
