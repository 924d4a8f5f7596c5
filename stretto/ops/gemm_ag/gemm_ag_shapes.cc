#include "stretto/ops/gemm_ag/gemm_ag_shapes.h"

namespace stretto {
namespace {

GemmAgOperator row(const char* name, const char* summary, Scaling scaling) {
  return {.name = name,
          .summary = summary,
          .desc = [scaling](const OpShape& s) { return gemm_ag_desc(s, scaling); },
          .config = [](const GemmAgDesc& d, Target target) { return default_config(d, target); },
          .program = gemm_ag};
}

}  // namespace

GemmAgDesc gemm_ag_desc(const OpShape& s, Scaling scaling) {
  DType factors = scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
  return {.world_size = s.world_size,
          .m = row_bucket(s.m),
          .n = ceil_div(s.n, std::int64_t{s.world_size}),
          .k = s.k,
          .a_dtype = factors,
          .b_dtype = factors,
          .c_dtype = s.dtype,
          .bias = s.m % 2 == 1,
          .scaling = scaling};
}

GemmAgOperator gemm_ag_operator() {
  return row("gemm_ag", "c[m,n] = all_gather(a[m,k] * b[n/P,k]^T, columns), SMs store tiles on all",
             Scaling::kNone);
}

GemmAgOperator gemm_ag_fp8_operator() {
  return row("gemm_ag_fp8", "gemm_ag of fp8 factors with a scale for each row of both",
             Scaling::kRowWise);
}

OperatorInfo gemm_ag_info() { return gemm_ag_operator().info(); }
OperatorInfo gemm_ag_fp8_info() { return gemm_ag_fp8_operator().info(); }

}  // namespace stretto
