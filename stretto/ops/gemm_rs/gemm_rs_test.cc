// If these fail, a row-parallel layer loses or doubles a rank's part of the sum, or a rank reads
// partial sums of another launch.
#include "stretto/ops/gemm_rs/gemm_rs.h"

#include <gtest/gtest.h>

#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/gemm_rs_case.h"

namespace stretto {
namespace {

struct Variant {
  const char* name;
  Scatter scatter;
  int num_slots;
  int num_reduce_sms = 2;
  bool across = false;
  int store_slots = 0;
  int load_slots = 0;
};

class GemmRs : public testing::TestWithParam<Variant> {
 protected:
  // Three blocks of a rank's 11 rows at P = 2, in two channels, the last one smaller.
  static GemmRsConfig small() {
    return {.loop = {.tile = {.bm = 4, .bn = 8, .bk = 20},
                     .num_compute_sms = 2,
                     .raster = 4,
                     .num_stages = GetParam().store_slots + GetParam().load_slots > 0 ? 3 : 0,
                     .store_slots = GetParam().store_slots,
                     .load_slots = GetParam().load_slots},
            .num_reduce_sms = GetParam().num_reduce_sms,
            .scatter = GetParam().scatter,
            .num_copy_queues = 2,
            .channels_per_rank = 2,
            .num_slots = GetParam().num_slots,
            .across = GetParam().across};
  }
};

// Of the config's numbers those that the shape has; agents and forms of tiles stay.
void expect_gemm_rs(const GemmRsDesc& d, const GemmRsConfig& asked) {
  GemmRsConfig cfg = fitted(d, asked);
  EXPECT_TRUE(cfg.loop.store_slots == asked.loop.store_slots &&
              cfg.loop.load_slots == asked.loop.load_slots && cfg.across == asked.across);
  std::uint64_t seed = test_seed();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 3, d.m}) {
    expect_runs(gemm_rs_case(d, cfg, m, seed), seed);
  }
}

TEST_P(GemmRs, RaggedRowsWithResidual) {
  for (int world : {1, 2, 5}) {
    expect_gemm_rs({.world_size = world, .m = 21, .n = 17, .k = 17, .residual = true}, small());
  }
}

TEST_P(GemmRs, AveragesWithResidual) {
  for (int world : {1, 3}) {
    expect_gemm_rs(
        {.world_size = world, .m = 21, .n = 17, .k = 17, .average = true, .residual = true},
        small());
  }
}

TEST_P(GemmRs, Doubles) {
  expect_gemm_rs({.world_size = 3,
                  .m = 21,
                  .n = 17,
                  .k = 51,
                  .a_dtype = DType::kF64,
                  .b_dtype = DType::kF64,
                  .out_dtype = DType::kF64,
                  .residual = true},
                 small());
}

TEST_P(GemmRs, WeightsByRowsOfK) {
  expect_gemm_rs({.world_size = 3, .m = 21, .n = 17, .k = 51, .b_kn = true}, small());
}

// Partial sums are scaled before they leave.
TEST_P(GemmRs, Fp8) {
  GemmRsDesc d{.world_size = 3,
               .m = 21,
               .n = 17,
               .k = 149,
               .a_dtype = DType::kF8E4M3,
               .b_dtype = DType::kF8E4M3,
               .scaling = Scaling::kRowWise};
  expect_gemm_rs(d, small());
  d.scaling = Scaling::kBlock;
  GemmRsConfig cfg = small();
  cfg.loop.tile.bk = 64;
  expect_gemm_rs(d, cfg);
}

TEST_P(GemmRs, MixedDtypes) {
  GemmRsConfig cfg = small();
  cfg.loop.tile.bn = 16;  // whole slots of 16-bit numbers
  expect_gemm_rs({.world_size = 4,
                  .m = 21,
                  .n = 17,
                  .k = 51,
                  .b_dtype = DType::kBF16,
                  .out_dtype = DType::kBF16},
                 cfg);
  expect_gemm_rs({.world_size = 2,
                  .m = 9,
                  .n = 13,
                  .k = 51,
                  .a_dtype = DType::kF16,
                  .b_dtype = DType::kF16,
                  .out_dtype = DType::kF16,
                  .residual = true},
                 cfg);
}

TEST_P(GemmRs, FewerRowsThanRanks) {
  expect_gemm_rs({.world_size = 6, .m = 4, .n = 10, .k = 16, .residual = true}, small());
}

INSTANTIATE_TEST_SUITE_P(
    Variants, GemmRs,
    testing::Values(Variant{"StoreCredit", Scatter::kEpilogue, 1},
                    Variant{"StoreTwoSlots", Scatter::kEpilogue, 2},
                    Variant{"CopyCredit", Scatter::kCopyEngine, 1},
                    Variant{"CopyTwoSlots", Scatter::kCopyEngine, 2},
                    Variant{"EpilogueSumCredit", Scatter::kEpilogue, 1, 0},
                    Variant{"EpilogueSum", Scatter::kEpilogue, 2, 0},
                    Variant{"AcrossRanks", Scatter::kEpilogue, 2, 0, true},
                    Variant{"CopyEpilogueSum", Scatter::kCopyEngine, 2, 0},
                    Variant{"CopyEpilogueWarp", Scatter::kCopyEngine, 1, 0, false, 2},
                    Variant{"EpilogueWarpCredit", Scatter::kEpilogue, 1, 0, false, 2},
                    Variant{"EpilogueWarp", Scatter::kEpilogue, 2, 0, false, 2},
                    Variant{"CopyAheadTwoSlots", Scatter::kCopyEngine, 2, 0, false, 0, 1},
                    Variant{"CopyAhead", Scatter::kCopyEngine, 1, 0, false, 0, 3},
                    Variant{"CopyEpilogueWarpAhead", Scatter::kCopyEngine, 1, 0, false, 2, 2},
                    Variant{"CopyEpilogueWarpAheadInLeft", Scatter::kCopyEngine, 1, 0, false, 2,
                            3}),
    [](const auto& info) { return info.param.name; });

TEST(GemmRsPipes, AnAgentOfItsOwnStoresAndNotifies) {
  GemmRsDesc d{.world_size = 2, .m = 512, .n = 256, .k = 256, .residual = true};
  d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
  for (Scatter scatter : {Scatter::kCopyEngine, Scatter::kEpilogue}) {
    GemmRsConfig cfg{
        .loop = {.tile = {.bm = 128, .bn = 256, .bk = 64}, .num_stages = 3, .store_slots = 4},
        .num_reduce_sms = 0,
        .scatter = scatter};
    Program schedule = run_pipeline(gemm_rs(d, cfg));
    const Role& role = schedule.roles.front();
    ASSERT_EQ(role.name, "gemm");
    ASSERT_EQ(role.agents.size(), 3U);
    EXPECT_EQ(role.agents[2].kind, AgentKind::kEpilogue);
  }
}

TEST(GemmRsDefaults, CopyPiecesThatAProgramMayHold) {
  for (std::int64_t m : {4096, 32768, 65536}) {
    for (std::int64_t width : {8192, 28672, 262144}) {
      for (int ranks : {1, 2, 8}) {
        GemmRsDesc d{.world_size = ranks, .m = m, .n = width, .k = width};
        GemmRsConfig cfg = default_config(d, Target::kCuda);
        EXPECT_NO_THROW(gemm_rs(d, cfg)) << to_string(d) << " | " << to_string(cfg);
      }
    }
  }
}

TEST(GemmRsErrors, NameTheField) {
  GemmRsDesc d{.world_size = 2, .m = 8, .n = 8, .k = 8};
  GemmRsConfig cfg = default_config(d);
  cfg.num_slots = 0;
  expect_user_error([&] { gemm_rs(d, cfg); }, "num_slots is 0");
  cfg.num_slots = 1;
  cfg.across = true;
  expect_user_error([&] { gemm_rs(d, cfg); }, "across is true, can only be false");
  cfg.across = false;
  cfg.loop.load_slots = 2;
  expect_user_error([&] { gemm_rs(d, cfg); },
                    "load_slots is 2, can only be 0: loads ahead need stages");
  d.out_dtype = DType::kF8E4M3;
  expect_user_error([&] { gemm_rs(d, default_config(d)); }, "out_dtype is");
  expect_user_error([] { default_config(GemmRsDesc{.world_size = 2, .m = 0, .n = 8, .k = 8}); },
                    "m is 0, must be at least 1");
}

// What a table says of a config is what ran.
TEST(GemmRsErrors, WhatTheShapeDoesNotGiveIsRefused) {
  GemmRsDesc d{.world_size = 2, .m = 180, .n = 8, .k = 8};  // 9 tiles of 10 rows on a rank
  const GemmRsConfig plain{.loop = {.tile = {.bm = 10, .bn = 8, .bk = 8}}};
  gemm_rs(d, plain);
  auto refused = [&](const std::function<void(GemmRsConfig&)>& set, const char* what) {
    GemmRsConfig cfg = plain;
    set(cfg);
    expect_user_error([&] { gemm_rs(d, cfg); }, what);
    gemm_rs(d, fitted(d, cfg));
  };
  refused([](auto& c) { c.channels_per_rank = 32; }, "channels_per_rank is 32, can only be 9");
  refused([](auto& c) { c.channels_per_rank = 4; }, "channels_per_rank is 4, can only be 3");
  refused([](auto& c) { c.loop.raster = 8; }, "raster is 8, can only be 3");
  refused([](auto& c) { c.num_copy_queues = 2; }, "num_copy_queues is 2, can only be 1");
  refused(
      [](auto& c) {
        c.num_reduce_sms = 0, c.across = true;
        c.loop.num_stages = 2, c.loop.store_slots = 2;
      },
      "store_slots is 2, can only be 0");
  GemmRsConfig whole = plain;
  whole.loop.raster = 16;  // all of a rank's
  EXPECT_EQ(to_string(fitted(d, whole)), to_string(whole));
  gemm_rs(d, whole);
}

}  // namespace
}  // namespace stretto
