#include "stretto/testing/cases/gemm_rs_case.h"

#include <algorithm>
#include <cmath>

#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {
namespace {

// What rank `rank` receives: its rows of the sum, then zeros up to ceil(m/P), then rows that are
// not compared.
Values expected_rows(const OpCase& c, const GemmRsDesc& d, const Values& sum, int rank,
                     std::int64_t m) {
  std::int64_t run = ceil_div(m, std::int64_t{d.world_size}), first = rank * run;
  Values rows(static_cast<std::size_t>(run * d.n), 0.0);
  for (std::int64_t i = 0; i < run && first + i < m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      auto at = static_cast<std::size_t>(i * d.n + j);
      rows[at] = sum[static_cast<std::size_t>((first + i) * d.n + j)];
      if (d.average) rows[at] /= d.world_size;
      if (d.residual) rows[at] += input_of(c, rank, "residual")[at];
    }
  }
  rows.resize(static_cast<std::size_t>(ceil_div(d.m, std::int64_t{d.world_size}) * d.n),
              kUnchecked);
  return rows;
}

}  // namespace

SummedProduct summed_product(const OpCase& c, const ProductShape& shape) {
  SummedProduct total;
  total.sum.assign(static_cast<std::size_t>(shape.m * shape.n), 0.0);
  Values terms(total.sum.size(), 0.0);
  for (int rank = 0; rank < c.program.world_size; ++rank) {
    Values part =
        product_reference(scaled_rows(c, rank, shape), scaled_weights(c, rank, "", shape), shape);
    for (std::size_t i = 0; i < part.size(); ++i) {
      total.sum[i] += part[i];
      terms[i] += std::fabs(part[i]);
    }
  }
  for (double t : terms) total.largest_terms = std::max(total.largest_terms, t);
  return total;
}

void set_sum_tolerance(OpCase& c, DType dtype, std::int64_t k, double largest_terms) {
  c.tolerance = sum_tolerance(dtype, k * c.program.world_size);
  c.scale = dtype == sum_dtype(dtype) ? std::sqrt(static_cast<double>(k * c.program.world_size))
                                      : largest_terms;  // each partial sum was rounded by its own
}

OpCase gemm_rs_case(const GemmRsDesc& d, const GemmRsConfig& cfg, std::int64_t m,
                    std::uint64_t seed) {
  OpCase c;
  c.program = gemm_rs(d, cfg);
  c.extents = {m};
  c.config = to_string(d) + " | " + to_string(cfg) + " | m=" + std::to_string(m);
  fill_inputs(c, seed);
  SummedProduct total =
      summed_product(c, {.m = m, .n = d.n, .k = d.k, .scaling = d.scaling, .b_kn = d.b_kn});
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (int rank = 0; rank < d.world_size; ++rank) {
    c.expected[static_cast<std::size_t>(rank)][out] = expected_rows(c, d, total.sum, rank, m);
  }
  set_sum_tolerance(c, d.out_dtype, d.k, total.largest_terms);
  c.tolerance += factor_tolerance(d.a_dtype, d.k);
  c.flops = 2.0 * static_cast<double>(m * d.n * d.k) * d.world_size;
  c.comm_bytes =
      static_cast<double>((d.world_size - 1) * ceil_div(m, std::int64_t{d.world_size}) * d.n) *
      static_cast<double>(size_bytes(d.out_dtype));
  return c;
}

std::vector<OperatorCase> gemm_rs_cases() {
  return {case_of(gemm_rs_operator(), gemm_rs_case), case_of(gemm_rs_copy_operator(), gemm_rs_case),
          case_of(gemm_rs_fp8_rows_operator(), gemm_rs_case),
          case_of(gemm_rs_fp8_operator(), gemm_rs_case)};
}

}  // namespace stretto
