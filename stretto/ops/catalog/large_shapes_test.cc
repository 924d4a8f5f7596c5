// Shipped operators with their GPU configs at a large model's layer, on several ranks. If these
// fail, nobody can launch an operator at the sizes that it is made for: a launch refuses what is
// not shown to be right (proof/verdict.h). `stretto prove --all --large` looks at all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

using NameAndRanks = std::tuple<std::string, int>;

class LargeShapes : public testing::TestWithParam<NameAndRanks> {};

TEST_P(LargeShapes, IsProved) {
  const auto& [name, world_size] = GetParam();
  const OperatorInfo* op = find_operator(name);
  ASSERT_NE(op, nullptr) << name;
  OpShape shape = op->large;
  shape.world_size = world_size;
  shape.target = Target::kCuda;
  shape.m = std::min<std::int64_t>(shape.m, 4096);
  ProofResult result = prove(run_pipeline(op->program(shape)));
  EXPECT_TRUE(result.proved()) << result.report;
}

// What takes half a second of CPU time and more on two ranks (docs/performance/proofs.md).
bool is_left_out(const std::string& name) {
  constexpr std::string_view kLong[] = {
      "gemm_ar_two_shot",    "packed_attention", "paged_attention",
      "paged_attention_fp8", "paged_decode",     "paged_decode_fp8",
      "grouped_gemm_masked", "ep_moe_layer",     "lm_head",
  };
  return std::ranges::find(kLong, name) != std::end(kLong);
}

// All that are soon proved, a part of them in each run; always those that were lost once.
std::vector<NameAndRanks> drawn() {
  std::vector<NameAndRanks> out = {{"flash_decode", 2},   {"flash_decode", 4},
                                   {"flash_decode", 8},   {"sorted_gemm_ar", 2},
                                   {"sorted_gemm_ar", 8}, {"sorted_gemm_rs", 4}};
  auto is_always = [&](const std::string& name) {
    return std::ranges::any_of(out,
                               [&](const NameAndRanks& o) { return o == NameAndRanks(name, 2); });
  };
  for (const OperatorInfo& op : catalog()) {
    std::string name = op.name;
    bool part = !is_always(name) && !is_left_out(name) && is_drawn("large shape " + name, 4);
    if (part) out.emplace_back(name, 2);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Operators, LargeShapes, testing::ValuesIn(drawn()), [](const auto& info) {
  return fmt::format("{}_P{}", std::get<0>(info.param), std::get<1>(info.param));
});

}  // namespace
}  // namespace stretto
