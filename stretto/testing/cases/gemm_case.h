// Cases of the GEMM family for tests, proof, benchmark and command line, with the plain fp64
// reference all of them check against.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_case(const GemmDesc& desc, const GemmConfig& config, std::int64_t m,
                 std::uint64_t seed);

// --- shared by the operators of the family ---

// a [m, k] * b [n, k]^T in fp64.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  // Of the inputs that are read with it.
  Scaling scaling = Scaling::kNone;
  bool b_kn = false;  // as in LinearDesc
};
Values product_reference(const Values& a, const Values& b, const ProductShape& shape);

// Fills the inputs of every rank of `c` with random values. They depend on the seed, the rank and
// the input's place among the inputs, so that variants of one operator get the same.
void fill_inputs(OpCase& c, std::uint64_t seed);

// Inputs a [m, k] and b + suffix of `rank`, the latter as [n, k], times their scales.
Values scaled_rows(const OpCase& c, int rank, const ProductShape& shape);
Values scaled_weights(const OpCase& c, int rank, const std::string& suffix,
                      const ProductShape& shape);

// What the tensor core adds to the tolerance of a sum of k products of fp8 factors, of terms of the
// case's scale: each instruction adds 32 products and what came before, cut off 13 bits below the
// largest of them (measured on Hopper in DeepSeek-V3, arXiv 2412.19437, section 3.5.2).
double factor_tolerance(DType factors, std::int64_t k);

// The weight side in fp64: f(a * b^T) with the biases and weights that `c` holds for `rank`.
Values linear_reference(const OpCase& c, int rank, const Values& a, const ProductShape& shape);

// What an operator that gathers rows or columns first gives, and what it costs.
struct GatheredProduct {
  DType a_dtype = DType::kF32, c_dtype = DType::kF32;
  std::int64_t bound = 0;  // on rows
  ProductShape shape;      // of the launch
  bool swiglu = false;
  double elements_received = 0;  // of `a`, by a rank
};
// Every rank's `c` is the weight side of `all`, the gathered a [m, k], of rows past m undefined.
void expect_product(OpCase& c, const Values& all, const GatheredProduct& product);

// The cases of a row whose programs are those of a Desc and a Config.
template <typename Desc, typename Config>
OperatorCase case_of(const ProductOperator<Desc, Config>& op,
                     OpCase (*make)(const Desc&, const Config&, std::int64_t m,
                                    std::uint64_t seed)) {
  return {op.name, [op, make](const OpShape& shape, std::uint64_t seed) {
            OpShape s = with_defaults(shape);
            Desc d = op.desc(s);
            return make(d, op.config(d, s.target), s.rows.value_or(s.m), seed);
          }};
}

const Values& input_of(const OpCase& c, int rank, std::string_view tensor);

}  // namespace stretto
