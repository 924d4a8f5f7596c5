// If these fail, a column-parallel layer multiplies rows that have not arrived, or gives wrong
// numbers for some split of rows, tiles and channels.
#include "stretto/ops/ag_gemm/ag_gemm.h"

#include <gtest/gtest.h>

#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/ag_gemm_case.h"
#include "stretto/testing/cases/case_testing.h"

namespace stretto {
namespace {

// Compute tiles straddle ranks, transfers do not divide a rank's rows, channels do not divide
// transfers.
constexpr AgGemmConfig kSmall{.loop = {.tile = {.bm = 4, .bn = 8, .bk = 20}, .num_compute_sms = 2},
                              .num_gather_workers = 2,
                              .comm_rows = 3,
                              .channels_per_rank = 2};

struct Way {
  const char* name;
  Gather gather;
  bool across = false;
};

class AgGemm : public testing::TestWithParam<Way> {
 protected:
  static AgGemmConfig small() {
    AgGemmConfig cfg = kSmall;
    cfg.gather = GetParam().gather;
    cfg.across = GetParam().across;
    return cfg;
  }
};

void expect_ag_gemm(const AgGemmDesc& d, const AgGemmConfig& cfg) {
  std::uint64_t seed = test_seed();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 3, d.m}) {
    expect_runs(ag_gemm_case(d, fitted(d, cfg), m, seed), seed);
  }
}

TEST_P(AgGemm, MixedDtypesWithBias) {
  for (int world : {1, 2, 5}) {
    expect_ag_gemm(
        {.world_size = world, .m = 21, .n = 17, .k = 51, .b_dtype = DType::kBF16, .bias = true},
        small());
  }
}

TEST_P(AgGemm, Doubles) {
  expect_ag_gemm({.world_size = 3,
                  .m = 21,
                  .n = 17,
                  .k = 51,
                  .a_dtype = DType::kF64,
                  .b_dtype = DType::kF64,
                  .c_dtype = DType::kF64,
                  .bias = true},
                 small());
}

// The scales of the peers' rows travel with the rows.
TEST_P(AgGemm, Fp8) {
  AgGemmDesc d{.world_size = 3,
               .m = 21,
               .n = 17,
               .k = 149,
               .a_dtype = DType::kF8E4M3,
               .b_dtype = DType::kF8E4M3,
               .bias = true,
               .scaling = Scaling::kRowWise};
  expect_ag_gemm(d, small());
  d.scaling = Scaling::kBlock;
  AgGemmConfig cfg = small();
  cfg.loop.tile.bk = 64;
  expect_ag_gemm(d, cfg);
  cfg.loop.num_stages = 2;
  expect_ag_gemm(d, cfg);
}

TEST_P(AgGemm, Swiglu) {
  expect_ag_gemm({.world_size = 3,
                  .m = 21,
                  .n = 17,
                  .k = 51,
                  .a_dtype = DType::kBF16,
                  .b_dtype = DType::kBF16,
                  .c_dtype = DType::kF16,
                  .bias = true,
                  .swiglu = true},
                 small());
}

TEST_P(AgGemm, WeightsByRowsOfK) {
  for (int stages : {0, 2}) {
    AgGemmConfig cfg = small();
    cfg.loop.num_stages = stages;
    expect_ag_gemm({.world_size = 3, .m = 21, .n = 17, .k = 51, .bias = true, .b_kn = true}, cfg);
  }
}

// What a weight's gradient is made of, without a second all-gather.
TEST_P(AgGemm, GivesTheGatheredRows) {
  if (GetParam().across) GTEST_SKIP() << "refused";
  for (int world : {1, 2, 5}) {
    AgGemmDesc d{.world_size = world, .m = 41, .n = 17, .k = 21, .gathered = true};
    expect_ag_gemm(d, small());
  }
  expect_ag_gemm({.world_size = 3,
                  .m = 21,
                  .n = 9,
                  .k = 149,
                  .a_dtype = DType::kF8E4M3,
                  .b_dtype = DType::kF8E4M3,
                  .scaling = Scaling::kRowWise,
                  .gathered = true},
                 small());
}

// Beside SMs that push, which few rows have for tiles across the ranks' rows, 128 of a rank's
// spill.
TEST(AgGemmConfig, GatheredRowsAreSentByEnginesUnlessFew) {
  AgGemmDesc d{.world_size = 2, .m = 256, .n = 4096, .k = 4096};
  d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
  EXPECT_EQ(default_config(d, Target::kCuda).gather, Gather::kPush);
  d.gathered = true;
  EXPECT_EQ(default_config(d, Target::kCuda).gather, Gather::kSend);
  d.m = 128;
  EXPECT_EQ(default_config(d, Target::kCuda).gather, Gather::kPush);
}

// Tiles that reach past a rank's rows, too.
TEST_P(AgGemm, AnAgentStores) {
  AgGemmConfig cfg = small();
  cfg.loop.tile.bn = 16;
  cfg.loop.num_stages = cfg.loop.store_slots = 2;
  for (int world : {1, 2, 3}) {
    AgGemmDesc d{.world_size = world, .m = 21, .n = 40, .k = 51, .c_dtype = DType::kBF16};
    std::vector<Role> roles = run_pipeline(ag_gemm(d, fitted(d, cfg))).roles;
    EXPECT_EQ(roles.back().agents.size(), 3u);
    expect_ag_gemm(d, cfg);
  }
}

TEST_P(AgGemm, MoreChannelsThanTransfers) {
  AgGemmConfig cfg = small();
  cfg.channels_per_rank = 7;
  AgGemmDesc d{.world_size = 4, .m = 30, .n = 10, .k = 16};
  expect_user_error([&] { ag_gemm(d, cfg); }, "ag_gemm P=4 m=30 n=10 k=16");
  const char* possible = cfg.across ? "channels_per_rank is 7, can only be 1"
                                    : "channels_per_rank is 7, can only be 3";
  expect_user_error([&] { ag_gemm(d, cfg); }, possible);
  expect_ag_gemm(d, cfg);
}

TEST_P(AgGemm, FewerRowsThanRanks) {
  expect_ag_gemm({.world_size = 6, .m = 4, .n = 10, .k = 16}, small());
}

INSTANTIATE_TEST_SUITE_P(Gathers, AgGemm,
                         testing::Values(Way{"pull", Gather::kPull}, Way{"send", Gather::kSend},
                                         Way{"push", Gather::kPush},
                                         Way{"across", Gather::kPush, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AgGemmDefaults, CopyPiecesThatAProgramMayHold) {
  for (std::int64_t m : {4096, 32768, 65536}) {
    for (std::int64_t width : {8192, 28672, 262144}) {
      for (int ranks : {1, 2, 8}) {
        AgGemmDesc d{.world_size = ranks, .m = m, .n = width, .k = width};
        for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
          AgGemmConfig cfg = default_config(d, Target::kCuda, gather);
          EXPECT_NO_THROW(ag_gemm(d, cfg)) << to_string(d) << " | " << to_string(cfg);
        }
      }
    }
  }
}

TEST(AgGemmErrors, NameTheField) {
  AgGemmDesc d{.world_size = 2, .m = 8, .n = 8, .k = 8};
  AgGemmConfig cfg = kSmall;
  cfg.comm_rows = 0;
  expect_user_error([&] { ag_gemm(d, cfg); }, "comm_rows is 0");
  cfg = kSmall;
  cfg.across = true;
  expect_user_error([&] { ag_gemm(d, cfg); }, "need gather = push");
  d.gathered = true;
  cfg.gather = Gather::kPush;
  expect_user_error([&] { ag_gemm(d, cfg); }, "gathered = false");
  cfg = kSmall;
  d.gathered = false;
  expect_user_error([&] { ag_gemm(d, cfg); }, "num_gather_workers is 2, can only be 1");
  d = {.world_size = 2, .m = 8, .n = 8, .k = 8, .a_dtype = DType::kF8E4M3, .b_kn = true};
  d.b_dtype = DType::kF8E4M3;
  expect_user_error([&] { ag_gemm(d, kSmall); }, "b_kn");
  d = {.world_size = 2, .m = -1, .n = 8, .k = 8};
  expect_user_error([&] { ag_gemm(d, kSmall); }, "m is -1");
}

// Both main loops fill the same slots of shared memory.
TEST(AgGemmPipes, OwnAndGatheredRowsTakeTurnsInOnePipe) {
  AgGemmDesc d{.world_size = 2,
               .m = 512,
               .n = 256,
               .k = 256,
               .a_dtype = DType::kBF16,
               .b_dtype = DType::kBF16,
               .c_dtype = DType::kBF16};
  Program schedule = run_pipeline(ag_gemm(d, default_config(d, Target::kCuda)));
  const Role* role = nullptr;
  for (const Role& r : schedule.roles) {
    if (r.name == "gemm") role = &r;
  }
  ASSERT_NE(role, nullptr);
  EXPECT_EQ(role->pipes.size(), 2U);
}

}  // namespace
}  // namespace stretto
