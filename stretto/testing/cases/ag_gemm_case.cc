#include "stretto/testing/cases/ag_gemm_case.h"

#include <cmath>
#include <limits>

#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {
namespace {

// Rows 0..m in order: row g is row g % ceil(m/P) of rank g / ceil(m/P).
Values gathered_rows(const OpCase& c, const ProductShape& shape) {
  const std::int64_t m = shape.m, k = shape.k;
  Values all;
  std::vector<Values> of_rank;
  for (int r = 0; r < c.program.world_size; ++r) of_rank.push_back(scaled_rows(c, r, shape));
  std::int64_t per_rank = ceil_div(m, std::int64_t{c.program.world_size});
  for (std::int64_t row = 0; row < m; ++row) {
    const Values& a = of_rank[static_cast<std::size_t>(row / per_rank)];
    auto first = a.begin() + row % per_rank * k;
    all.insert(all.end(), first, first + k);
  }
  return all;
}

}  // namespace

OpCase ag_gemm_case(const AgGemmDesc& d, const AgGemmConfig& cfg, std::int64_t m,
                    std::uint64_t seed) {
  OpCase c;
  c.program = ag_gemm(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  ProductShape shape{.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn};
  Values all = gathered_rows(c, shape);
  Values unscaled = gathered_rows(c, {.m = m, .k = d.k});
  unscaled.resize(static_cast<std::size_t>(d.m * d.k), std::numeric_limits<double>::quiet_NaN());
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  for (int rank = 0; rank < d.world_size; ++rank) {
    Values want = linear_reference(c, rank, all, shape);
    want.resize(static_cast<std::size_t>(d.m * d.n), std::numeric_limits<double>::quiet_NaN());
    std::vector<Values>& expected = c.expected[static_cast<std::size_t>(rank)];
    expected[out] = std::move(want);
    if (d.gathered) {
      expected[static_cast<std::size_t>(c.program.find_tensor("gathered"))] = unscaled;
    }
  }
  bool bytes = d.a_dtype == DType::kF8E4M3;
  c.tolerance = sum_tolerance(d.c_dtype, d.k) + factor_tolerance(d.a_dtype, d.k);
  c.scale = d.c_dtype == sum_dtype(d.c_dtype) || bytes ? std::sqrt(static_cast<double>(d.k)) : 1;
  c.flops = 2.0 * static_cast<double>(m * d.n * d.k) * (d.swiglu ? 2 : 1) * d.world_size;
  std::int64_t own_rows = ceil_div(m, std::int64_t{d.world_size});
  c.comm_bytes =
      static_cast<double>((m - own_rows) * d.k) * static_cast<double>(size_bytes(d.a_dtype));
  return c;
}

std::vector<OperatorCase> ag_gemm_cases() {
  return {case_of(ag_gemm_operator(), ag_gemm_case), case_of(ag_gemm_push_operator(), ag_gemm_case),
          case_of(ag_gemm_fp8_operator(), ag_gemm_case),
          case_of(ag_gemm_fp8_block_operator(), ag_gemm_case),
          case_of(ag_gemm_gathered_operator(), ag_gemm_case)};
}

}  // namespace stretto
