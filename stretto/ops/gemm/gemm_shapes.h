// Rows of the catalog: what the GEMM family makes of a shape that is asked for.
// m: rows, n: columns of c, k: the summed dimension.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

// A row whose programs are those of a Desc and a Config.
template <typename Desc, typename Config>
struct ProductOperator {
  const char* name;
  const char* summary;
  std::function<Desc(const OpShape&)> desc;  // of a shape with all sizes
  std::function<Config(const Desc&, Target)> config;
  Program (*program)(const Desc&, const Config&);

  OperatorInfo info() const;
};

using GemmOperator = ProductOperator<GemmDesc, GemmConfig>;
GemmOperator gemm_operator();
GemmOperator gemm_swiglu_operator();
GemmOperator gemm_fp8_operator();
GemmOperator gemm_fp8_block_operator();
GemmOperator gemm_split_k_operator();

OperatorInfo gemm_info();
OperatorInfo gemm_swiglu_info();
OperatorInfo gemm_fp8_info();
OperatorInfo gemm_fp8_block_info();
OperatorInfo gemm_split_k_info();

// --- shared by the operators of the family ---

// An operator is built for a bucket of rows and launched with fewer: m rounded up to 8.
std::int64_t row_bucket(std::int64_t m);
// Sizes that were left open, filled in.
OpShape with_defaults(OpShape shape);
// One even shape, ragged ones, fewer rows than ranks; all three dtypes.
std::vector<OpShape> gemm_shapes(int world_size);
// The projections of an 8 B model.
OpShape large_gemm();

template <typename Desc, typename Config>
OperatorInfo ProductOperator<Desc, Config>::info() const {
  return {.name = name,
          .summary = summary,
          .program =
              [op = *this](const OpShape& shape) {
                Desc d = op.desc(with_defaults(shape));
                return op.program(d, op.config(d, shape.target));
              },
          .shapes = gemm_shapes,
          .large = large_gemm()};
}

}  // namespace stretto
