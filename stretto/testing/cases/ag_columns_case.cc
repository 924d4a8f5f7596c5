#include "stretto/testing/cases/ag_columns_case.h"

#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {
namespace {

// [m, k]: column j of all is column j % (k/P) of rank j / (k/P).
Values gathered_columns(const OpCase& c, const AgColumnsDesc& d, std::int64_t m) {
  const std::int64_t cols = d.k / d.world_size;
  Values all(static_cast<std::size_t>(m * d.k));
  for (int rank = 0; rank < d.world_size; ++rank) {
    Values own = scaled_rows(c, rank, {.m = m, .k = cols, .scaling = d.scaling});
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        all[static_cast<std::size_t>(row * d.k + rank * cols + col)] =
            own[static_cast<std::size_t>(row * cols + col)];
      }
    }
  }
  return all;
}

}  // namespace

OpCase ag_columns_case(const AgColumnsDesc& d, const AgColumnsConfig& cfg, std::int64_t m,
                       std::uint64_t seed) {
  OpCase c;
  c.program = ag_columns_gemm(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  ProductShape shape{.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn};
  Values all = gathered_columns(c, d, m);
  expect_product(c, all,
                 {.a_dtype = d.a_dtype,
                  .c_dtype = d.c_dtype,
                  .bound = d.m,
                  .shape = shape,
                  .elements_received = static_cast<double>(m * (d.k - d.k / d.world_size))});
  return c;
}

std::vector<OperatorCase> ag_columns_cases() {
  return {case_of(ag_columns_gemm_operator(), ag_columns_case),
          case_of(ag_columns_gemm_fp8_operator(), ag_columns_case),
          case_of(ag_columns_gemm_fp8_block_operator(), ag_columns_case)};
}

}  // namespace stretto
