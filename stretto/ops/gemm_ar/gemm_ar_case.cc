#include "stretto/ops/gemm_ar/gemm_ar_case.h"

#include <limits>

#include "stretto/ops/gemm/gemm_case.h"
#include "stretto/ops/gemm_rs/gemm_rs_case.h"

namespace stretto {
namespace {

OperatorInfo info(const char* name, const char* summary, ReduceShots shots,
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
  return ProductOperator<GemmArDesc, GemmArConfig>{.name = name,
                                                   .summary = summary,
                                                   .desc = desc,
                                                   .config = config,
                                                   .program = gemm_ar,
                                                   .make_case = gemm_ar_case}
      .info();
}

}  // namespace

OpCase gemm_ar_case(const GemmArDesc& d, const GemmArConfig& cfg, std::int64_t m,
                    std::uint64_t seed) {
  OpCase c;
  c.program = gemm_ar(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  if (d.residual) {
    auto residual = static_cast<std::size_t>(c.program.find_tensor("residual"));
    for (auto& inputs : c.inputs) inputs[residual] = c.inputs[0][residual];
  }
  SummedProduct total =
      summed_product(c, {.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn});
  Values want = total.sum;
  for (std::size_t i = 0; d.residual && i < want.size(); ++i) {
    want[i] += input_of(c, 0, "residual")[i];
  }
  want.resize(static_cast<std::size_t>(d.m * d.n), std::numeric_limits<double>::quiet_NaN());
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (auto& expected : c.expected) expected[out] = want;
  set_sum_tolerance(c, d.out_dtype, d.k, total.largest_terms);
  c.tolerance += factor_tolerance(d.a_dtype, d.k);
  c.flops = 2.0 * static_cast<double>(m * d.n * d.k) * d.world_size;
  double received = cfg.shots == ReduceShots::kOne ? static_cast<double>(m)
                                                   : 2.0 * static_cast<double>(m) / d.world_size;
  c.comm_bytes = received * static_cast<double>((d.world_size - 1) * d.n) *
                 static_cast<double>(size_bytes(d.out_dtype));
  return c;
}

OperatorInfo gemm_ar_info() {
  return info("gemm_ar",
              "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, one hop: every rank sums "
              "everything",
              ReduceShots::kOne);
}

OperatorInfo gemm_ar_two_shot_info() {
  return info("gemm_ar_two_shot",
              "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, two hops: owners sum their "
              "rows and send them",
              ReduceShots::kTwo);
}

OperatorInfo gemm_ar_shared_info() {
  return info(
      "gemm_ar_shared",
      "out[m,n] = all_reduce(a[m,k/P] * b[n,k/P]^T) + residual, two hops: every rank sums a "
      "share of each tile",
      ReduceShots::kShared);
}

OperatorInfo gemm_ar_fp8_info() {
  return info("gemm_ar_fp8", "gemm_ar of fp8 factors with a scale for each row of both, one hop",
              ReduceShots::kOne, Scaling::kRowWise);
}

OperatorInfo gemm_ar_fp8_block_info() {
  return info("gemm_ar_fp8_block",
              "gemm_ar of fp8 factors, scales for 1 x 128 of a and 128 x 128 of b, one hop",
              ReduceShots::kOne, Scaling::kBlock);
}

}  // namespace stretto
