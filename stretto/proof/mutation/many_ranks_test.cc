// Shares of many ranks, of which small sizes leave some empty: one size after the other is cut off
// until what is left does alike. If this fails, a product of real size is refused at launch.
#include <gtest/gtest.h>

#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

// Each worker has tiles of the rows of two ranks.
TEST(ManyRanks, SharesThatSmallSizesLeaveEmptyMakeFewPieces) {
  const OperatorInfo& op = *find_operator("ag_gemm_gathered");
  OpShape shape = op.large;
  shape.world_size = 8;
  shape.m = 16384;
  shape.target = Target::kCuda;
  ProofResult result = prove(run_pipeline(op.program(shape)));
  EXPECT_EQ(result.verdict, Verdict::kProved) << result.report;
}

}  // namespace
}  // namespace stretto
