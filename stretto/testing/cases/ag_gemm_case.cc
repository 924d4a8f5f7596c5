#include "stretto/testing/cases/ag_gemm_case.h"


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
  unscaled.resize(static_cast<std::size_t>(d.m * d.k), kUnchecked);
  if (d.gathered) {
    auto gathered = static_cast<std::size_t>(c.program.find_tensor("gathered"));
    for (std::vector<Values>& expected : c.expected) expected[gathered] = unscaled;
  }
  std::int64_t own_rows = ceil_div(m, std::int64_t{d.world_size});
  expect_product(c, all,
                 {.a_dtype = d.a_dtype,
                  .c_dtype = d.c_dtype,
                  .bound = d.m,
                  .shape = shape,
                  .swiglu = d.swiglu,
                  .elements_received = static_cast<double>((m - own_rows) * d.k)});
  return c;
}

std::vector<OperatorCase> ag_gemm_cases() {
  return {case_of(ag_gemm_operator(), ag_gemm_case), case_of(ag_gemm_push_operator(), ag_gemm_case),
          case_of(ag_gemm_fp8_operator(), ag_gemm_case),
          case_of(ag_gemm_fp8_block_operator(), ag_gemm_case),
          case_of(ag_gemm_gathered_operator(), ag_gemm_case)};
}

}  // namespace stretto
