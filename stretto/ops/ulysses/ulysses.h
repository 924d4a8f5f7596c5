// The linear layers around attention whose heads are spread over the ranks while everything else
// has the tokens spread: before it, a product whose columns go to the ranks of their heads; after
// it, one whose rows come from them (DeepSpeed-Ulysses, Jacobs et al. 2023). Both move data beside
// the tensor cores: tiles go out as they are done, and rows are multiplied as they arrive.
//
// Rank r has the tokens [r * ceil(m/P), (r + 1) * ceil(m/P)) of m, and of columns that belong to
// heads the r-th of P equal parts.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct UlyssesDesc {
  int world_size = 1;
  std::int64_t m = 0;         // bound of the tokens of all ranks; a launch has 0 <= m <= this
  std::int64_t n = 0;         // rows of the weights, on every rank all of them
  std::int64_t k = 0;         // their columns
  DType dtype = DType::kF32;  // the tokens', before and after
  DType weight_dtype = DType::kF32;  // the weights' and the bias'
  bool bias = false;
  bool residual = false;  // a2a_gemm: + residual[ceil(m/P), n]
  friend bool operator==(const UlyssesDesc&, const UlyssesDesc&) = default;
};

struct UlyssesConfig {
  MainLoop loop;
  std::int64_t comm_rows = 0;  // a2a_gemm: rows of one copy, a multiple of tile.bm
  int num_queues = 1;          // a2a_gemm: copy queues that send
  friend bool operator==(const UlyssesConfig&, const UlyssesConfig&) = default;
};

NamedFields fields_of(UlyssesDesc& desc);
NamedFields fields_of(UlyssesConfig& config);
UlyssesConfig default_gemm_a2a_config(const UlyssesDesc& desc, Target target);
UlyssesConfig default_a2a_gemm_config(const UlyssesDesc& desc, Target target);
// Rows of one of a2a_gemm's copies: `rows` in whole tiles of `bm`, or as many as it may hold.
std::int64_t copied_rows(const UlyssesDesc& desc, std::int64_t bm, std::int64_t rows);

// Extent m. a [ceil(m/P), k], the own tokens; b [n, k], P equal parts of which the r-th is for the
// heads of rank r, and bias [n] -> c [m, n/P], symmetric: all tokens of the own heads. SMs store
// tiles where they belong, those of the next rank first and the own ones last. UserError naming a
// bad field.
Program gemm_a2a(const UlyssesDesc& desc, const UlyssesConfig& config);
// Extent m. a [m, k/P], all tokens of the own heads; b [n, k], bias [n] and residual [ceil(m/P), n]
// -> c [ceil(m/P), n], the own tokens, and behind them what tokens of zeros would make. Copy
// engines send the rows of every rank to it; a tile begins with the own columns and adds those of
// the next rank, and the one after, where they have arrived.
Program a2a_gemm(const UlyssesDesc& desc, const UlyssesConfig& config);

OperatorInfo gemm_a2a_info();
OperatorInfo a2a_gemm_info();

}  // namespace stretto
