// Products that normalise their rows themselves. If these fail, a model's token depends on whether
// its normalisations are launches of their own.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ops/gemm/case_testing.h"
#include "stretto/ops/gemm/gemm_case.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/passes/pipeline.h"

namespace stretto {
namespace {

constexpr GemmDesc kRow{.m = 1,
                        .n = 200,
                        .k = 1024,
                        .a_dtype = DType::kBF16,
                        .b_dtype = DType::kBF16,
                        .c_dtype = DType::kBF16,
                        .norm = true};

std::shared_ptr<const Program> scheduled(Program program) {
  return std::make_shared<const Program>(run_pipeline(std::move(program)));
}

// Both launches, by the same tiles: rounded where the one that does both rounds.
TEST(GemmNorm, GivesTheBitsOfBothLaunches) {
  std::uint64_t seed = test_seed();
  for (bool swiglu : {false, true}) {
    GemmDesc d = kRow;
    d.swiglu = swiglu;
    GemmConfig config = default_config(d, Target::kCuda);
    ASSERT_GT(config.factor_slots, 0);
    auto random = [&](std::int64_t count, std::uint64_t which) {
      return random_values(static_cast<std::size_t>(count), DType::kBF16, seed * 7 + which);
    };
    Values a = random(d.k, 0), norm = random(d.k, 1);
    std::map<std::string, Doubles> weights = {{"b", random(d.n * d.k, 2)}};
    if (swiglu) weights = {{"b_gate", random(d.n * d.k, 3)}, {"b_up", random(d.n * d.k, 4)}};
    NormDesc rms{.dtype = d.a_dtype, .weight_dtype = d.b_dtype, .m = 1, .hidden = d.k};
    rms.eps = d.norm_eps;
    Doubles normed = run_once(scheduled(rms_norm(rms, default_config(rms, Target::kCuda))),
                              {{"x", a}, {"weight", norm}})
                         .at("out");
    GemmDesc plain = d;
    plain.norm = false;
    GemmConfig plain_config = config;
    plain_config.factor_slots = 0;
    auto inputs = weights;
    inputs["a"] = normed;
    Doubles want = run_once(scheduled(gemm(plain, plain_config)), inputs).at("c");
    inputs["a"] = a;
    inputs["norm"] = norm;
    EXPECT_EQ(run_once(scheduled(gemm(d, config)), inputs).at("c"), want) << "seed " << seed;
    config.factor_slots = 0;
    EXPECT_EQ(run_once(scheduled(gemm(d, config)), inputs).at("c"), want) << "seed " << seed;
  }
}

// The weights of the product and of the normalisation are under way while the launch before, which
// leaves the row, still runs; the row is read after it.
TEST(GemmNorm, WeightsDoNotWaitForTheRow) {
  auto program = scheduled(gemm(kRow, default_config(kRow, Target::kCuda)));
  std::string text = generate_kernel(*program, {.constants = {"b", "norm"}}).source;
  std::size_t maker = text.find("// maker"), producer = text.find("// producer");
  ASSERT_NE(maker, std::string::npos) << text;
  ASSERT_NE(producer, std::string::npos) << text;
  auto order = [&](std::size_t from, const char* before) {
    std::size_t load = text.find(before, from);
    std::size_t wait = text.find("wait_for_previous_launch();", from);
    EXPECT_LT(load, wait) << before << text;
    return wait;
  };
  order(producer, "tma_load_3d(");
  std::size_t wait = order(maker, "load_box<L0");
  EXPECT_NE(text.find("load_box<L1", wait), std::string::npos) << text;
  EXPECT_EQ(text.find("load_box<L0", wait), std::string::npos)
      << "once, not for every tile" << text;
}

TEST(GemmNorm, RefusesWhatItDoesNotDo) {
  GemmDesc d = kRow;
  d.m = kMostNormedRows + 1;
  expect_user_error([&] { gemm(d, {.tile = {.bm = 8, .bn = 8, .bk = 64}}); }, "m is 3");
  d = kRow;
  expect_user_error([&] { gemm(d, {.tile = {.bm = 2, .bn = 8, .bk = 64}, .split_k = 2}); },
                    "split_k");
}

}  // namespace
}  // namespace stretto
