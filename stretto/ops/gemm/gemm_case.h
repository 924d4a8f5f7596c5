// Cases of the GEMM family for tests, proof, benchmark and command line, with the plain fp64
// reference all of them check against.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/harness/op_case.h"

namespace stretto {

// `m` is the launch's number of rows, 0 <= m <= desc.m.
OpCase gemm_case(const GemmDesc& desc, const GemmConfig& config, std::int64_t m,
                 std::uint64_t seed);

// m: rows, n: columns of c, k: the summed dimension.
OperatorInfo gemm_info();
OperatorInfo gemm_swiglu_info();
OperatorInfo gemm_fp8_info();
OperatorInfo gemm_fp8_block_info();
OperatorInfo gemm_split_k_info();

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

// An operator is built for a bucket of rows and launched with fewer: m rounded up to 8.
std::int64_t row_bucket(std::int64_t m);
// Sizes that were left open, filled in.
OpShape with_defaults(OpShape shape);
// One even shape, ragged ones, fewer rows than ranks; all three dtypes.
std::vector<OpShape> gemm_shapes(int world_size);
// The projections of an 8 B model.
OpShape large_gemm();

// An operator whose programs and cases are those of a Desc and a Config.
template <typename Desc, typename Config>
struct ProductOperator {
  const char* name;
  const char* summary;
  std::function<Desc(const OpShape&)> desc;  // of a shape with all sizes
  std::function<Config(const Desc&, Target)> config;
  Program (*program)(const Desc&, const Config&);
  OpCase (*make_case)(const Desc&, const Config&, std::int64_t m, std::uint64_t seed);

  OperatorInfo info() const {
    return {.name = name,
            .summary = summary,
            .program =
                [op = *this](const OpShape& shape) {
                  Desc d = op.desc(with_defaults(shape));
                  return op.program(d, op.config(d, shape.target));
                },
            .make_case =
                [op = *this](const OpShape& shape, std::uint64_t seed) {
                  OpShape s = with_defaults(shape);
                  Desc d = op.desc(s);
                  return op.make_case(d, op.config(d, s.target), s.rows.value_or(s.m), seed);
                },
            .shapes = gemm_shapes,
            .large = large_gemm()};
  }
};

const Values& input_of(const OpCase& c, int rank, std::string_view tensor);

}  // namespace stretto
