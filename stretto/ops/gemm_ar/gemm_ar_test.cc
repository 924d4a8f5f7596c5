// If these fail, ranks disagree about a hidden state after a row-parallel layer, or the numbers
// depend on which algorithm was chosen.
#include "stretto/ops/gemm_ar/gemm_ar.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/gemm_ar/gemm_ar_sm90.h"
#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/gemm_ar_case.h"
#include "stretto/testing/harness/case_memory.h"

namespace stretto {
namespace {

struct Variant {
  const char* name;
  ReduceShots shots;
  int num_slots;
  Scatter scatter;
  int num_reduce_sms = 2;
  bool packets = false;
  int store_slots = 0;
  int load_slots = 0;
  std::optional<Scatter> gather = {};  // as `scatter`
};

GemmArConfig small(const Variant& v) {
  return {.loop = {.tile = {.bm = 4, .bn = 8, .bk = 20},
                   .num_compute_sms = 2,
                   .num_stages = v.store_slots + v.load_slots > 0 ? 3 : 0,
                   .store_slots = v.store_slots,
                   .load_slots = v.load_slots},
          .shots = v.shots,
          .num_reduce_sms = v.num_reduce_sms,
          .packets = v.packets,
          .channels = 3,
          .num_slots = v.num_slots,
          .scatter = v.scatter,
          .gather = v.gather.value_or(v.scatter),
          .num_copy_queues = 2};
}

class GemmAr : public testing::TestWithParam<Variant> {};

// Of the config's numbers those that the shape has; agents and packets stay.
void expect_gemm_ar(const GemmArDesc& d, const GemmArConfig& asked) {
  GemmArConfig cfg = fitted(d, asked);
  EXPECT_TRUE(cfg.loop.store_slots == asked.loop.store_slots &&
              cfg.loop.load_slots == asked.loop.load_slots && cfg.packets == asked.packets &&
              cfg.scatter == asked.scatter && cfg.gather == asked.gather &&
              cfg.swap_ab == asked.swap_ab && cfg.split_k == asked.split_k);
  std::uint64_t seed = test_seed();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 3, d.m}) {
    expect_runs(gemm_ar_case(d, cfg, m, seed), seed);
  }
}

TEST_P(GemmAr, RaggedRowsWithResidual) {
  for (int world : {1, 2, 5}) {
    expect_gemm_ar({.world_size = world, .m = 21, .n = 17, .k = 17, .residual = true},
                   small(GetParam()));
  }
}

TEST_P(GemmAr, Doubles) {
  expect_gemm_ar({.world_size = 3,
                  .m = 21,
                  .n = 17,
                  .k = 17,
                  .a_dtype = DType::kF64,
                  .b_dtype = DType::kF64,
                  .out_dtype = DType::kF64,
                  .residual = true},
                 small(GetParam()));
}

TEST_P(GemmAr, WeightsByRowsOfK) {
  expect_gemm_ar({.world_size = 3, .m = 21, .n = 17, .k = 51, .b_kn = true}, small(GetParam()));
}

// Partial sums are scaled before they leave.
TEST_P(GemmAr, Fp8) {
  GemmArDesc d{.world_size = 3,
               .m = 21,
               .n = 17,
               .k = 149,
               .a_dtype = DType::kF8E4M3,
               .b_dtype = DType::kF8E4M3,
               .scaling = Scaling::kRowWise};
  expect_gemm_ar(d, small(GetParam()));
  d.scaling = Scaling::kBlock;
  GemmArConfig cfg = small(GetParam());
  cfg.loop.tile.bk = 64;
  expect_gemm_ar(d, cfg);
}

TEST_P(GemmAr, MixedDtypes) {
  GemmArConfig cfg = small(GetParam());
  cfg.loop.tile.bn = 16;  // whole slots of 16-bit numbers
  expect_gemm_ar({.world_size = 4,
                  .m = 11,
                  .n = 17,
                  .k = 51,
                  .b_dtype = DType::kBF16,
                  .out_dtype = DType::kF16},
                 cfg);
}

TEST_P(GemmAr, FewerRowsThanRanks) {
  expect_gemm_ar({.world_size = 6, .m = 4, .n = 10, .k = 16}, small(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(
    Variants, GemmAr,
    testing::Values(
        Variant{"OneShotCredit", ReduceShots::kOne, 1, Scatter::kEpilogue},
        Variant{"OneShotTwoSlots", ReduceShots::kOne, 2, Scatter::kEpilogue},
        Variant{"TwoShotCredit", ReduceShots::kTwo, 1, Scatter::kEpilogue},
        Variant{"TwoShotTwoSlots", ReduceShots::kTwo, 2, Scatter::kEpilogue},
        Variant{"TwoShotCopy", ReduceShots::kTwo, 2, Scatter::kCopyEngine},
        Variant{"OneShotEpilogueSum", ReduceShots::kOne, 2, Scatter::kEpilogue, 0},
        Variant{"OneShotEpilogueCredit", ReduceShots::kOne, 1, Scatter::kEpilogue, 0},
        Variant{"Packets", ReduceShots::kOne, 2, Scatter::kEpilogue, 0, true},
        Variant{"TwoShotEpilogueSum", ReduceShots::kTwo, 2, Scatter::kEpilogue, 0},
        Variant{"TwoShotEpilogueCopy", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0},
        Variant{"TwoShotEpilogueWarp", ReduceShots::kTwo, 2, Scatter::kEpilogue, 0, false, 2},
        Variant{"TwoShotCopyEpilogueWarp", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0, false, 2},
        Variant{"TwoShotCopyAhead", ReduceShots::kTwo, 2, Scatter::kCopyEngine, 0, false, 0, 1},
        Variant{"TwoShotCopyEpilogueWarpAheadInLeft", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0,
                false, 2, 3},
        Variant{"TwoShotCopyEpilogueWarpAhead", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0,
                false, 2, 2},
        Variant{"TwoShotSumsStored", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0, false, 2, 2,
                Scatter::kEpilogue},
        Variant{"TwoShotSumsCopied", ReduceShots::kTwo, 2, Scatter::kEpilogue, 0, false, 2, 0,
                Scatter::kCopyEngine}),
    [](const auto& info) { return info.param.name; });

// Ranks that share each tile, as many rows of it as it has, or as many but the last.
class GemmArShared : public testing::TestWithParam<bool> {};

GemmArConfig shared(std::int64_t tile_rows, bool packets) {
  GemmArConfig c = small({"Shared", ReduceShots::kShared, 2, Scatter::kEpilogue, 0, packets});
  c.loop.tile.bm = tile_rows;
  return c;
}

TEST_P(GemmArShared, RaggedRows) {
  for (auto [world, tile_rows] :
       {std::pair{1, 4}, {2, 4}, {3, 8}, {4, 10}, {5, 9}, {8, 8}, {12, 12}}) {
    GemmArDesc d{.world_size = world, .m = 21, .n = 17, .k = 17, .residual = world != 4};
    GemmArConfig cfg = fitted(d, shared(tile_rows, GetParam()));
    EXPECT_EQ(cfg.shots, ReduceShots::kShared) << world;
    expect_gemm_ar(d, cfg);
    if (world > 3) continue;
    d.a_dtype = d.out_dtype = DType::kBF16;  // rows of an odd number of packets
    expect_gemm_ar(d, shared(tile_rows, GetParam()));
  }
}

TEST_P(GemmArShared, AShareForEveryRankOrOneShot) {
  GemmArDesc d{.world_size = 5, .m = 21, .n = 17, .k = 17};
  GemmArConfig asked = shared(/*tile_rows=*/8, GetParam());  // four shares of two rows
  EXPECT_EQ(fitted(d, asked).shots, ReduceShots::kOne);
  try {
    gemm_ar(d, asked);
    FAIL() << "was accepted";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("shots is shared"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Signs, GemmArShared, testing::Bool(),
                         [](const auto& info) { return info.param ? "Packets" : "Signals"; });

// The weights as the left factor: tiles of any number of rows, which are turned at once or, with
// many, in two pieces.
class GemmArSwapped : public testing::TestWithParam<Variant> {};

TEST_P(GemmArSwapped, RaggedRowsAndColumns) {
  GemmArConfig cfg = small(GetParam());
  cfg.swap_ab = true;
  for (int world : {1, 2, 3, 4}) {
    for (bool b_kn : {false, true}) {
      for (std::int64_t tile_rows : {12, 144}) {
        cfg.loop.tile = {.bm = tile_rows, .bn = 8, .bk = 20};
        cfg.loop.num_stages = b_kn ? 2 : 0;
        expect_gemm_ar({.world_size = world,
                        .m = tile_rows + 5,
                        .n = 21,
                        .k = 51,
                        .residual = world != 4,
                        .b_kn = b_kn},
                       cfg);
      }
    }
  }
}

TEST_P(GemmArSwapped, Halves) {
  GemmArConfig cfg = small(GetParam());
  cfg.swap_ab = true;
  cfg.loop.tile = {.bm = 160, .bn = 16, .bk = 20};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    expect_gemm_ar({.world_size = 2,
                    .m = 157,
                    .n = 37,
                    .k = 51,
                    .a_dtype = dtype,
                    .b_dtype = dtype,
                    .out_dtype = dtype},
                   cfg);
  }
}

// Several workers to a tile, of weights on either side: parts of k that do not divide its steps,
// more parts than workers, slots with and without a credit.
TEST(GemmArParts, OfK) {
  for (int world : {1, 2, 3, 4}) {
    for (bool swap_ab : {false, true}) {
      for (int slots : {1, 2}) {
        GemmArConfig cfg = small({"Parts", ReduceShots::kOne, slots, Scatter::kEpilogue, 0});
        cfg.loop.tile = {.bm = swap_ab ? 144 : 12, .bn = 8, .bk = 10};
        cfg.loop.num_compute_sms = world + 1;
        cfg.split_k = slots + 1;
        cfg.swap_ab = swap_ab;
        expect_gemm_ar({.world_size = world,
                        .m = cfg.loop.tile.bm + 3,
                        .n = 21,
                        .k = 51,
                        .residual = swap_ab,
                        .b_kn = slots == 1},
                       cfg);
      }
    }
  }
}

// Tiles of all rows that there are are among the candidates, whole and in parts of k, and none
// takes more shared memory than a block has.
TEST(GemmArSwappedConfigs, FitABlock) {
  for (int world : {2, 4}) {
    for (std::int64_t m : {64, 65, 90, 136, 208, 256, 400}) {
      for (ReduceShots shots : {ReduceShots::kOne, ReduceShots::kShared}) {
        GemmArDesc d{.world_size = world, .m = m, .n = 5120, .k = 8192};
        d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
        int swapped = 0;
        for (const GemmArConfig& c : gpu_configs(d, shots, GpuTarget{.sms = 132})) {
          if (!c.swap_ab) continue;
          ++swapped;
          EXPECT_LT(c.loop.tile.bm * ceil_div(m, c.loop.tile.bm) - m, 32) << to_string(c);
          EXPECT_TRUE(has_gpu_lowering(lower(gemm_ar(d, c)))) << to_string(c);
        }
        EXPECT_EQ(swapped > 0, m > kFewRows) << to_string(d);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, GemmArSwapped,
    testing::Values(Variant{"Credit", ReduceShots::kOne, 1, Scatter::kEpilogue},
                    Variant{"EpilogueSum", ReduceShots::kOne, 2, Scatter::kEpilogue, 0},
                    Variant{"Packets", ReduceShots::kOne, 2, Scatter::kEpilogue, 0, true},
                    Variant{"Shared", ReduceShots::kShared, 1, Scatter::kEpilogue, 0},
                    Variant{"SharedPackets", ReduceShots::kShared, 2, Scatter::kEpilogue, 0, true}),
    [](const auto& info) { return info.param.name; });

// The bytes of `out` on every rank after one launch.
std::vector<std::vector<std::byte>> output_bits(const OpCase& c) {
  Proved compiled =
      waive_proof(lower(c.program), "the orders of additions are compared, not the proof");
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  std::vector<std::vector<std::byte>> bits(static_cast<std::size_t>(c.program.world_size));
  World world({.size = c.program.world_size});
  world.run([&](Rank& rank) {
    CaseMemory memory(rank, c);
    std::unique_ptr<Executable> loaded = load(compiled, rank);
    memory.launch(*loaded);
    bits[static_cast<std::size_t>(rank.index())] = memory.bytes_of(out);
  });
  return bits;
}

TEST(GemmArBits, AreTheSameOnAllRanksAndForBothAlgorithms) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    GemmArDesc d{.world_size = 3,
                 .m = 21,
                 .n = 17,
                 .k = 51,
                 .a_dtype = dtype,
                 .b_dtype = dtype,
                 .out_dtype = dtype,
                 .residual = true};
    auto bits = [&](const Variant& v) {
      return output_bits(gemm_ar_case(d, fitted(d, small(v)), d.m, seed));
    };
    auto one = bits({"one", ReduceShots::kOne, 2, Scatter::kEpilogue});
    auto two = bits({"two", ReduceShots::kTwo, 2, Scatter::kEpilogue});
    auto packets = bits({"packets", ReduceShots::kOne, 2, Scatter::kEpilogue, 0, true});
    auto epilogue = bits({"epilogue", ReduceShots::kTwo, 2, Scatter::kEpilogue, 0});
    for (const auto& rank_bits : one) EXPECT_TRUE(rank_bits == one[0]) << name(dtype);
    EXPECT_TRUE(one == two) << name(dtype);
    EXPECT_TRUE(one == packets) << name(dtype);
    EXPECT_TRUE(one == epilogue) << name(dtype);
    for (bool packets : {false, true}) {
      GemmArConfig of_shares = shared(/*tile_rows=*/8, packets);
      EXPECT_TRUE(one == output_bits(gemm_ar_case(d, fitted(d, of_shares), d.m, seed)));
    }
  }
}

// Sums in the epilogue come in two parts of the columns there.
TEST(GemmArBits, AreTheSameWhereTilesAreWide) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  GemmArDesc d{.world_size = 3, .m = 21, .n = 300, .k = 51, .residual = true};
  d.out_dtype = DType::kBF16;
  auto bits = [&](const Variant& v) {
    GemmArConfig cfg = small(v);
    cfg.loop.tile.bn = 224;   // in halves of whole slots
    cfg.loop.num_stages = 3;  // step by step in all of them
    GemmArConfig possible = fitted(d, cfg);
    EXPECT_TRUE(possible.loop.store_slots == v.store_slots &&
                possible.loop.load_slots == v.load_slots);
    return output_bits(gemm_ar_case(d, possible, d.m, seed));
  };
  auto one = bits({"one", ReduceShots::kOne, 2, Scatter::kEpilogue});
  for (Scatter scatter : {Scatter::kEpilogue, Scatter::kCopyEngine}) {
    EXPECT_TRUE(one == bits({"epilogue", ReduceShots::kTwo, 2, scatter, 0}));
    EXPECT_TRUE(one == bits({"epilogue warp", ReduceShots::kTwo, 2, scatter, 0, false, 2}));
  }
  for (Scatter gather : {Scatter::kEpilogue, Scatter::kCopyEngine}) {
    EXPECT_TRUE(
        one == bits({"ahead", ReduceShots::kTwo, 1, Scatter::kCopyEngine, 0, false, 2, 2, gather}));
  }
}

// Tiles of the two algorithms differ in height, and where rows are cut into tiles.
TEST(GemmArBits, DoNotDependOnTheHeightOfTiles) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (std::int64_t m : {9, 16, 20, 64, 128}) {
      GemmArDesc d{.world_size = 3,
                   .m = m,
                   .n = 150,
                   .k = 333,
                   .a_dtype = dtype,
                   .b_dtype = dtype,
                   .out_dtype = DType::kF32};
      auto one = output_bits(gemm_ar_case(d, default_config(d, ReduceShots::kOne), m, seed));
      auto two = output_bits(gemm_ar_case(d, default_config(d, ReduceShots::kTwo), m, seed));
      for (const auto& rank_bits : one) EXPECT_TRUE(rank_bits == one[0]) << name(dtype) << m;
      EXPECT_TRUE(one == two) << name(dtype) << " m=" << m;
    }
  }
}

// Rows that ranks own in whole tiles, so that no store is limited to some of a tile's.
TEST(GemmArPipes, AnAgentOfItsOwnStoresAndNotifies) {
  GemmArDesc d{.world_size = 2, .m = 500, .n = 256, .k = 256};
  d.a_dtype = d.b_dtype = d.out_dtype = DType::kBF16;
  for (Scatter scatter : {Scatter::kCopyEngine, Scatter::kEpilogue}) {
    GemmArConfig cfg{
        .loop = {.tile = {.bm = 128, .bn = 256, .bk = 64}, .num_stages = 3, .store_slots = 4},
        .shots = ReduceShots::kTwo,
        .num_reduce_sms = 0,
        .scatter = scatter};
    Program schedule = run_pipeline(gemm_ar(d, cfg));
    const Role& role = schedule.roles.front();
    ASSERT_EQ(role.name, "gemm");
    ASSERT_EQ(role.agents.size(), 3U);
    EXPECT_EQ(role.agents[2].kind, AgentKind::kEpilogue);
  }
}

TEST(GemmArDefaults, CopyPiecesThatAProgramMayHold) {
  for (std::int64_t m : {4096, 32768, 65536}) {
    for (std::int64_t width : {8192, 28672, 262144}) {
      for (int ranks : {1, 2, 8}) {
        GemmArDesc d{.world_size = ranks, .m = m, .n = width, .k = width};
        GemmArConfig cfg = default_config(d, Target::kCuda);
        EXPECT_NO_THROW(gemm_ar(d, cfg)) << to_string(d) << " | " << to_string(cfg);
      }
    }
  }
}

TEST(GemmArErrors, NameTheField) {
  expect_user_error([] { default_config(GemmArDesc{.world_size = 2, .m = 0, .n = 8, .k = 8}); },
                    "m is 0, must be at least 1");
  GemmArDesc d{.world_size = 2, .m = 8, .n = 8, .k = 8};
  GemmArConfig cfg = default_config(d);
  cfg.channels = 0;
  expect_user_error([&] { gemm_ar(d, cfg); }, "channels is 0");
  cfg = default_config(d);
  cfg.packets = true;
  expect_user_error([&] { gemm_ar(d, cfg); },
                    "packets is true, can only be false: packets need one shot");
  cfg = default_config(d);
  cfg.loop.store_slots = 2;
  expect_user_error([&] { gemm_ar(d, cfg); },
                    "store_slots is 2, can only be 0: an agent that stores needs two shots");
  cfg = default_config(d);
  cfg.loop.load_slots = 2;
  expect_user_error([&] { gemm_ar(d, cfg); },
                    "load_slots is 2, can only be 0: loads ahead need two shots");
  cfg = default_config(d);
  cfg.channels = 5;
  expect_user_error([&] { gemm_ar(d, cfg); }, "gemm_ar P=2 m=8 n=8 k=8");
  expect_user_error([&] { gemm_ar(d, cfg); }, "channels is 5, can only be 1: 1 tiles");
  cfg = default_config(d);
  cfg.scatter = Scatter::kCopyEngine;
  expect_user_error([&] { gemm_ar(d, cfg); }, "scatter is copy_engine, can only be epilogue");
  cfg = default_config(d);
  cfg.gather = Scatter::kCopyEngine;
  expect_user_error([&] { gemm_ar(d, cfg); }, "gather is copy_engine, can only be epilogue");
  cfg = default_config(d);
  cfg.loop.raster = 8;
  expect_user_error([&] { gemm_ar(d, cfg); }, "raster is 8, can only be 1");
  cfg = default_config(d);
  cfg.num_reduce_sms = 0, cfg.packets = true, cfg.num_slots = 1;
  expect_user_error([&] { gemm_ar(d, cfg); }, "num_slots is 1, can only be 2");
  cfg = default_config(d, ReduceShots::kTwo);
  cfg.swap_ab = true;
  expect_user_error([&] { gemm_ar(d, cfg); }, "swap_ab is true, can only be false: two shots");
  GemmArDesc scaled = d;
  scaled.a_dtype = scaled.b_dtype = DType::kF8E4M3;
  scaled.scaling = Scaling::kRowWise;
  cfg = default_config(scaled);
  cfg.swap_ab = true;
  expect_user_error([&] { gemm_ar(scaled, cfg); }, "swap_ab is true, can only be false: scales");
  cfg = default_config(d);
  cfg.split_k = 2;
  expect_user_error([&] { gemm_ar(d, cfg); }, "split_k is 2, but k has 1 steps");
  d.k = 1024;
  expect_user_error([&] { gemm_ar(d, cfg); }, "split_k is 2, can only be 1: parts of k need");
  EXPECT_EQ(default_config(d).shots, ReduceShots::kOne);
  d.m = 4096;
  EXPECT_EQ(default_config(d).shots, ReduceShots::kTwo);
}

}  // namespace
}  // namespace stretto
