#include "stretto/testing/cases/gemm_ag_case.h"

#include <cmath>

#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {

OpCase gemm_ag_case(const GemmAgDesc& d, const GemmAgConfig& cfg, std::int64_t m,
                    std::uint64_t seed) {
  OpCase c;
  c.program = gemm_ag(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  const ProductShape shape{.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn};
  const std::int64_t columns = d.n * d.world_size;
  Values whole(static_cast<std::size_t>(d.m * columns), kUnchecked);
  for (int rank = 0; rank < d.world_size; ++rank) {
    const Values own = linear_reference(c, rank, scaled_rows(c, rank, shape), shape);
    for (std::int64_t i = 0; i < m * d.n; ++i) {
      const std::int64_t at = i / d.n * columns + rank * d.n + i % d.n;
      whole[static_cast<std::size_t>(at)] = own[static_cast<std::size_t>(i)];
    }
  }
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  for (std::vector<Values>& of_rank : c.expected) of_rank[out] = whole;
  const bool is_exact = d.c_dtype == sum_dtype(d.c_dtype) || d.a_dtype == DType::kF8E4M3;
  c.tolerance = sum_tolerance(d.c_dtype, d.k) + factor_tolerance(d.a_dtype, d.k);
  c.scale = is_exact ? std::sqrt(static_cast<double>(d.k)) : 1;
  c.flops = 2.0 * static_cast<double>(m * columns * d.k);
  c.comm_bytes =
      static_cast<double>(m * (columns - d.n)) * static_cast<double>(size_bytes(d.c_dtype));
  return c;
}

std::vector<OperatorCase> gemm_ag_cases() {
  return {case_of(gemm_ag_operator(), gemm_ag_case), case_of(gemm_ag_fp8_operator(), gemm_ag_case)};
}

}  // namespace stretto
