// Cases of gemm_rs for tests, proof, benchmark and command line.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ops/gemm_rs/gemm_rs_shapes.h"
#include "stretto/testing/cases/gemm_case.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_rs_case(const GemmRsDesc& desc, const GemmRsConfig& config, std::int64_t m,
                    std::uint64_t seed);

// Shared with gemm_ar: the sum over the ranks of a [m, k] * b [n, k]^T, in fp64, and how far from
// it a result may lie whose partial sums were rounded to `dtype`.
struct SummedProduct {
  Values sum;                // [m, n]
  double largest_terms = 0;  // largest sum of the magnitudes of the P partial sums
};
SummedProduct summed_product(const OpCase& c, const ProductShape& shape);
void set_sum_tolerance(OpCase& c, DType dtype, std::int64_t k, double largest_terms);

}  // namespace stretto
