#include "stretto/testing/cases/gemm_ar_case.h"


#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/cases/gemm_rs_case.h"

namespace stretto {
namespace {}  // namespace

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
  want.resize(static_cast<std::size_t>(d.m * d.n), kUnchecked);
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

std::vector<OperatorCase> gemm_ar_cases() {
  return {case_of(gemm_ar_operator(), gemm_ar_case),
          case_of(gemm_ar_two_shot_operator(), gemm_ar_case),
          case_of(gemm_ar_shared_operator(), gemm_ar_case),
          case_of(gemm_ar_fp8_operator(), gemm_ar_case),
          case_of(gemm_ar_fp8_block_operator(), gemm_ar_case)};
}

}  // namespace stretto
