#include "stretto/ops/gemm_rs/gemm_rs_shapes.h"

namespace stretto {
namespace {

GemmRsOperator row(const char* name, const char* summary, Scatter scatter,
                   Scaling scaling = Scaling::kNone) {
  auto desc = [scaling](const OpShape& s) {
    DType factors = scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
    return GemmRsDesc{.world_size = s.world_size,
                      .m = row_bucket(s.m),
                      .n = s.n,
                      .k = ceil_div(s.k, std::int64_t{s.world_size}),
                      .a_dtype = factors,
                      .b_dtype = factors,
                      .out_dtype = s.dtype,
                      .residual = true,
                      .scaling = scaling};
  };
  auto config = [scatter](const GemmRsDesc& d, Target target) {
    bool engine = target == Target::kCuda && scatter == Scatter::kCopyEngine;
    GemmRsConfig cfg = engine ? gpu_config_of_runs(d, target.gpu()) : default_config(d, target);
    cfg = with_scatter(cfg, scatter);
    if (engine) cfg.loop.num_compute_sms = std::min(cfg.loop.num_compute_sms, target.sms() - 1);
    return fitted(d, cfg);
  };
  return {.name = name, .summary = summary, .desc = desc, .config = config, .program = gemm_rs};
}

}  // namespace

GemmRsOperator gemm_rs_operator() {
  return row("gemm_rs",
             "out[m/P,n] = reduce_scatter(a[m,k/P] * b[n,k/P]^T) + residual, stored by the GEMM "
             "straight to the rows' owner",
             Scatter::kEpilogue);
}

GemmRsOperator gemm_rs_copy_operator() {
  return row("gemm_rs_copy",
             "out[m/P,n] = reduce_scatter(a[m,k/P] * b[n,k/P]^T) + residual, copy engines send "
             "finished rows",
             Scatter::kCopyEngine);
}

GemmRsOperator gemm_rs_fp8_rows_operator() {
  return row("gemm_rs_fp8_rows", "gemm_rs of fp8 factors with a scale for each row of both",
             Scatter::kEpilogue, Scaling::kRowWise);
}

GemmRsOperator gemm_rs_fp8_operator() {
  return row("gemm_rs_fp8", "gemm_rs of fp8 factors, scales for 1 x 128 of a and 128 x 128 of b",
             Scatter::kEpilogue, Scaling::kBlock);
}

OperatorInfo gemm_rs_info() { return gemm_rs_operator().info(); }
OperatorInfo gemm_rs_copy_info() { return gemm_rs_copy_operator().info(); }
OperatorInfo gemm_rs_fp8_rows_info() { return gemm_rs_fp8_rows_operator().info(); }
OperatorInfo gemm_rs_fp8_info() { return gemm_rs_fp8_operator().info(); }

}  // namespace stretto
