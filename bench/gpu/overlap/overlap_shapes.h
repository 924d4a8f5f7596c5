// What the comparison of fused operators runs: layers of tensor-parallel models, and for each the
// programs among which the fastest is chosen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/products/gemm_shapes.h"
#include "stretto/ir/program.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/operator/operator.h"

namespace stretto::bench {

enum class OverlapKind : std::uint8_t { kAgGemm, kGemmRs, kGemmAr };
const char* name(OverlapKind kind);  // "ag_gemm"

// One rank's factors are a [m, k], b [n, k] of these: of kAgGemm, m/P rows of a, gathered; of
// kGemmRs and kGemmAr, products to be summed. m is a multiple of the world size.
struct OverlapShape {
  OverlapKind kind = OverlapKind::kAgGemm;
  GemmShape rank;  // of one rank's product
  int world_size = 1;
  bool decode = false;  // always measured in captured graphs too

  std::string to_string() const;  // "gemm_rs P=2 m=8192 n=4096 k=5504"
};

// The operator that a shape of its kind asks for, in bf16.
AgGemmDesc ag_gemm_desc(const OverlapShape& shape);
GemmRsDesc gemm_rs_desc(const OverlapShape& shape);
GemmArDesc gemm_ar_desc(const OverlapShape& shape);
// The same as the catalog and the chooser ask for it, with the sizes of all ranks.
OpShape shape_of_all_ranks(const OverlapShape& shape);

// The dense layers of TileLink's MLP-1 to MLP-6 (Zheng et al. 2025, table 2) in bf16, gate and up
// side by side, for 8192 rows, some for 4096 and 1024, and the product with all-reduce of 1 to 8192
// rows. `quick`: a few of them.
std::vector<OverlapShape> overlap_shapes(int world_size, bool quick);

// A way to compute the shape that may turn out the fastest.
struct OverlapCandidate {
  std::string family;  // "pull", "push", "epilogue", "copy", or as family_of()
  std::string config;
  Program program;    // empty after an error
  std::string error;  // why the operator refuses the config
};
const char* family_of(const GemmArConfig& config);  // "one", "two", "packets", "shared", ...
std::vector<OverlapCandidate> overlap_candidates(const OverlapShape& shape, int num_sms,
                                                 bool quick);

}  // namespace stretto::bench
