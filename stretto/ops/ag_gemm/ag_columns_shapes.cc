#include "stretto/ops/ag_gemm/ag_columns_shapes.h"

namespace stretto {
namespace {

AgColumnsOperator row(const char* name, const char* summary, Scaling scaling, Gather gather) {
  return {.name = name,
          .summary = summary,
          .desc = [scaling](const OpShape& s) { return ag_columns_desc(s, scaling); },
          .config = [gather](const AgColumnsDesc& d,
                             Target target) { return default_config(d, target, gather); },
          .program = ag_columns_gemm};
}

}  // namespace

AgColumnsDesc ag_columns_desc(const OpShape& s, Scaling scaling) {
  std::int64_t step = s.world_size * (scaling == Scaling::kBlock ? kScaleBlock : 1);
  DType factors = scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
  return {.world_size = s.world_size,
          .m = row_bucket(s.m),
          .n = ceil_div(s.n, std::int64_t{s.world_size}),
          .k = ceil_div(s.k, step) * step,
          .a_dtype = factors,
          .b_dtype = factors,
          .c_dtype = s.dtype,
          .scaling = scaling};
}

AgColumnsOperator ag_columns_gemm_operator() {
  return row(
      "ag_columns_gemm",
      "c[m,n/P] = all_gather(a[m,k/P], columns) * b[n/P,k]^T, copy engines send the own ones",
      Scaling::kNone, Gather::kSend);
}

AgColumnsOperator ag_columns_gemm_fp8_operator() {
  return row("ag_columns_gemm_fp8",
             "ag_columns_gemm of fp8 factors with a scale for each row of both, SMs push the own",
             Scaling::kRowWise, Gather::kPush);
}

AgColumnsOperator ag_columns_gemm_fp8_block_operator() {
  return row("ag_columns_gemm_fp8_block",
             "ag_columns_gemm of fp8 factors, scales for 1 x 128 of a and 128 x 128 of b",
             Scaling::kBlock, Gather::kSend);
}

OperatorInfo ag_columns_gemm_info() { return ag_columns_gemm_operator().info(); }
OperatorInfo ag_columns_gemm_fp8_info() { return ag_columns_gemm_fp8_operator().info(); }
OperatorInfo ag_columns_gemm_fp8_block_info() {
  return ag_columns_gemm_fp8_block_operator().info();
}

}  // namespace stretto
