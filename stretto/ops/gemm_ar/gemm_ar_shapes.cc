#include "stretto/ops/gemm_ar/gemm_ar_shapes.h"

namespace stretto {
namespace {

GemmArOperator row(const char* name, const char* summary, ReduceShots shots,
                   Scaling scaling = Scaling::kNone) {
  auto desc = [scaling](const OpShape& s) {
    DType factors = scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
    return GemmArDesc{.world_size = s.world_size,
                      .m = row_bucket(s.m),
                      .n = s.n,
                      .k = ceil_div(s.k, std::int64_t{s.world_size}),
                      .a_dtype = factors,
                      .b_dtype = factors,
                      .out_dtype = s.dtype,
                      .residual = true,
                      .scaling = scaling};
  };
  auto config = [shots](const GemmArDesc& d, Target target) {
    return default_config(d, shots, target);
  };
  return {.name = name, .summary = summary, .desc = desc, .config = config, .program = gemm_ar};
}

}  // namespace

GemmArOperator gemm_ar_operator() {
  return row("gemm_ar",
             "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, one hop: every rank sums "
             "everything",
             ReduceShots::kOne);
}

GemmArOperator gemm_ar_two_shot_operator() {
  return row("gemm_ar_two_shot",
             "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, two hops: owners sum their "
             "rows and send them",
             ReduceShots::kTwo);
}

GemmArOperator gemm_ar_shared_operator() {
  return row("gemm_ar_shared",
             "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, two hops: every rank sums a "
             "share of each tile",
             ReduceShots::kShared);
}

GemmArOperator gemm_ar_fp8_operator() {
  return row("gemm_ar_fp8", "gemm_ar of fp8 factors with a scale for each row of both, one hop",
             ReduceShots::kOne, Scaling::kRowWise);
}

GemmArOperator gemm_ar_fp8_block_operator() {
  return row("gemm_ar_fp8_block",
             "gemm_ar of fp8 factors, scales for 1 x 128 of a and 128 x 128 of b, one hop",
             ReduceShots::kOne, Scaling::kBlock);
}

OperatorInfo gemm_ar_info() { return gemm_ar_operator().info(); }
OperatorInfo gemm_ar_two_shot_info() { return gemm_ar_two_shot_operator().info(); }
OperatorInfo gemm_ar_shared_info() { return gemm_ar_shared_operator().info(); }
OperatorInfo gemm_ar_fp8_info() { return gemm_ar_fp8_operator().info(); }
OperatorInfo gemm_ar_fp8_block_info() { return gemm_ar_fp8_block_operator().info(); }

}  // namespace stretto
