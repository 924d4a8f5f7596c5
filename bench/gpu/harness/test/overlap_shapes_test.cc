// What the comparisons of fused operators run and what the catalog makes of the same shape are the
// same operator. If these fail, times of two shapes are compared.
#include "bench/gpu/overlap/overlap_shapes.h"

#include <gtest/gtest.h>

#include "stretto/ops/choose/candidates.h"

namespace stretto::bench {
namespace {

TEST(OverlapShapesTest, TheCatalogsOperatorHasTheSameTensors) {
  for (OverlapKind kind : {OverlapKind::kAgGemm, OverlapKind::kGemmRs, OverlapKind::kGemmAr}) {
    for (int ranks : {2, 3, 4}) {
      const OverlapShape shape{
          .kind = kind, .rank = {.m = 1536, .n = 2048, .k = 1024}, .world_size = ranks};
      SCOPED_TRACE(shape.to_string());
      const Program compared = overlap_candidates(shape, GpuTarget{}.sms, true).front().program;
      const Program of_catalog =
          candidates(name(kind), shape_of_all_ranks(shape)).fused.front().program();
      for (std::size_t t = 0; t < compared.tensors.size(); ++t) {
        if (compared.tensors[t].kind == TensorKind::kBuffer) continue;
        const int other = of_catalog.find_tensor(compared.tensors[t].name);
        ASSERT_GE(other, 0) << compared.tensors[t].name;
        EXPECT_EQ(bound_shape(compared, static_cast<int>(t)), bound_shape(of_catalog, other))
            << compared.tensors[t].name;
      }
    }
  }
}

}  // namespace
}  // namespace stretto::bench
