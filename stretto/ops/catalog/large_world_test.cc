// Shipped operators on more ranks than a node has. If these fail, an operator that is right on
// eight ranks may race or hang on sixty-four.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

class LargeWorld : public testing::TestWithParam<std::tuple<const char*, int>> {};

// Ragged: the last rank has fewer rows than the others.
TEST_P(LargeWorld, IsProved) {
  auto [name, world_size] = GetParam();
  const OperatorInfo* op = find_operator(name);
  ASSERT_NE(op, nullptr) << name;
  Program program = op->program({.world_size = world_size,
                                 .m = 2 * world_size - 1,
                                 .n = 12,
                                 .k = world_size,
                                 .dtype = DType::kF32});
  ASSERT_EQ(program.world_size, world_size);
  // All sizes, which take more events in all than a launch spends on them.
  ProofResult result = prove(run_pipeline(std::move(program)), {.max_enumerated = 10'000'000});
  EXPECT_TRUE(result.proved()) << result.report;
}

std::vector<std::tuple<const char*, int>> worlds() {
  std::vector<std::tuple<const char*, int>> all;
  for (const char* name :
       {"all_gather", "ag_gemm", "gemm_rs", "gemm_ar", "all_reduce_two_shot", "all_to_all"}) {
    for (int size : {16, 32, 64}) {
      all.emplace_back(name, size);
    }
  }
  return drawn_of("large worlds", all, 6);
}

INSTANTIATE_TEST_SUITE_P(SomeOperators, LargeWorld, testing::ValuesIn(worlds()),
                         [](const auto& info) {
                           return fmt::format("{}_P{}", std::get<0>(info.param),
                                              std::get<1>(info.param));
                         });

}  // namespace
}  // namespace stretto
