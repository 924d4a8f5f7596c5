// If these fail, the sum over ranks that is normalised depends on how it travels.
#include "stretto/ops/norm/norm.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

// The operator's case with the program of another config; buffers come after what a caller has.
OpCase case_of(const NormConfig& config, const OpShape& shape, std::uint64_t seed) {
  OpCase c = make_case(all_reduce_add_rms_norm_info(), shape, seed);
  NormDesc desc{.dtype = shape.dtype,
                .weight_dtype = shape.dtype,
                .m = shape.m,
                .hidden = shape.n,
                .world_size = shape.world_size};
  c.program = all_reduce_add_rms_norm(desc, config);
  for (auto* values : {&c.inputs, &c.expected}) {
    for (auto& of_rank : *values) of_rank.resize(c.program.tensors.size());
  }
  return c;
}

// Rows that each rank owns several of, one, and none; an odd width, whose last packet is half
// empty.
TEST(AllReduceAddRmsNorm, IsProvedAndRightByEveryWay) {
  std::uint64_t seed = test_seed() % 100'000;
  for (int world = 1; world <= 5; ++world) {
    for (std::int64_t rows : {0, 1, 4, 11}) {
      OpShape shape{.world_size = world, .m = 11, .n = 31, .dtype = DType::kBF16, .rows = rows};
      for (NormConfig config :
           {NormConfig{.tile_rows = 2}, NormConfig{.packets = true},
            NormConfig{.tile_rows = 1, .packets = true, .two_shot = true},
            NormConfig{.tile_rows = 2, .num_workers = 3, .packets = true, .two_shot = true}}) {
        EXPECT_EQ(run_case(case_of(config, shape, seed), {.launches = 3, .waiver = {}}), "")
            << world << " ranks, " << rows << " rows, packets " << config.packets << ", two shots "
            << config.two_shot << ", seed " << seed;
      }
    }
  }
}

TEST(AllReduceAddRmsNorm, TwoShotsNeedPackets) {
  EXPECT_THROW(all_reduce_add_rms_norm({.world_size = 2}, {.two_shot = true}), UserError);
}

}  // namespace
}  // namespace stretto
