// If these fail, a linear layer gives wrong numbers for some mix of dtypes, bias, activation and
// rows, or rows get lost when a matrix is shared out over the ranks.
#include "stretto/ops/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/gemm/gemm_sm90.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {
namespace {

// Many tiles, all of them ragged at the edges of m = 37, n = 29, k = 51.
constexpr GemmTile kSmallTile{.bm = 8, .bn = 12, .bk = 20};
constexpr GemmDesc kRagged{.world_size = 2, .m = 37, .n = 29, .k = 51};

void expect_gemm(const GemmDesc& d, const GemmConfig& cfg) {
  std::uint64_t seed = test_seed();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 1, d.m}) {
    expect_runs(gemm_case(d, cfg, m, seed), seed);
  }
}

TEST(Gemm, MixedDtypesWithBias) {
  GemmDesc d = kRagged;
  d.b_dtype = DType::kBF16;
  d.bias = true;
  expect_gemm(d, {.loop = {.tile = kSmallTile, .num_compute_sms = 2, .raster = 3}});
}

TEST(Gemm, ResidualIsAddedBeforeTheOnlyRounding) {
  GemmDesc d = kRagged;
  d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
  d.bias = d.residual = true;
  expect_gemm(d, {.loop = {.tile = kSmallTile}});
}

TEST(Gemm, WeightsWithColumnsFirst) {
  GemmDesc d = kRagged;
  d.bias = d.b_kn = true;
  expect_gemm(d, {.loop = {.tile = kSmallTile}});
  d.swiglu = true;
  expect_gemm(d, {.loop = {.tile = kSmallTile, .num_stages = 2}, .split_k = 2});
}

// By an agent of its own, and the warpgroups of a block staggered, which CPU ranks know nothing of.
TEST(Gemm, AnEpilogueWarpStores) {
  GemmDesc d = kRagged;
  d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
  GemmTile tile{.bm = 8, .bn = 32, .bk = 20};
  expect_gemm(d, {.loop = {.tile = tile, .num_stages = 3, .store_slots = 2}});
  tile = {.bm = 128, .bn = 32, .bk = 32};
  expect_gemm(d, {.loop = {.tile = tile, .num_stages = 3, .stagger = 2, .store_slots = 2}});
}

// What a check of gradients rests on: nothing on the way is rounded to f32.
TEST(Gemm, Doubles) {
  GemmDesc d = kRagged;
  d.a_dtype = d.b_dtype = d.c_dtype = DType::kF64;
  d.bias = d.residual = true;
  EXPECT_LT(gemm_case(d, {.loop = {.tile = kSmallTile}}, d.m, 1).tolerance, 1e-13);
  expect_gemm(d, {.loop = {.tile = kSmallTile, .num_stages = 2}, .split_k = 2});
  d.residual = false;
  d.swiglu = true;
  expect_gemm(d, default_config(d));
  d.b_dtype = DType::kF32;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); }, "a_dtype is float64");
  d.b_dtype = DType::kF64;
  d.c_dtype = DType::kF32;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); },
                    "c_dtype is float32, must be float64");
}

TEST(Gemm, SwigluWithBiases) {
  GemmDesc d = kRagged;
  d.b_dtype = DType::kF16;
  d.c_dtype = DType::kF16;
  d.bias = d.swiglu = true;
  expect_gemm(d, {.loop = {.tile = kSmallTile}});
}

// k has a whole block of 128 and a part, n a tile that ends within a block.
GemmDesc fp8(Scaling scaling) {
  return {.world_size = 2,
          .m = 37,
          .n = 141,
          .k = 179,
          .a_dtype = DType::kF8E4M3,
          .b_dtype = DType::kF8E4M3,
          .scaling = scaling};
}

TEST(Gemm, Fp8WithoutAndWithScalesOfRows) {
  expect_gemm(fp8(Scaling::kNone), {.loop = {.tile = kSmallTile}});
  GemmDesc d = fp8(Scaling::kRowWise);
  d.bias = d.residual = true;
  d.c_dtype = DType::kBF16;
  expect_gemm(d, {.loop = {.tile = kSmallTile, .num_compute_sms = 2, .raster = 3}});
}

TEST(Gemm, Fp8WithScalesOfBlocks) {
  GemmDesc d = fp8(Scaling::kBlock);
  d.bias = d.swiglu = true;
  expect_gemm(d, {.loop = {.tile = {.bm = 8, .bn = 32, .bk = 64}}});
  d.swiglu = false;
  d.c_dtype = DType::kF16;
  GemmTile tile{.bm = 16, .bn = 64, .bk = 128};
  expect_gemm(d, {.loop = {.tile = tile, .num_compute_sms = 2, .num_stages = 2}});
  expect_gemm(d, {.loop = {.tile = tile, .num_stages = 2, .num_consumers = 2}});
  expect_gemm(d, default_config(d));
}

TEST(Gemm, ScalesAreOfFp8FactorsAndOneForATileOfWeights) {
  GemmDesc d = fp8(Scaling::kBlock);
  expect_user_error([&] { gemm(d, {.loop = {.tile = {.bm = 8, .bn = 96, .bk = 128}}}); },
                    "tile.bn is 96");
  expect_user_error([&] { gemm(d, {.loop = {.tile = {.bm = 8, .bn = 128, .bk = 256}}}); },
                    "tile.bk is 256");
  d.a_dtype = DType::kBF16;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); }, "b_dtype is float8_e4m3fn");
  d.b_dtype = DType::kBF16;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); },
                    "scaling is block, needs factors of");
}

// Scales that were mixed up, or left out, must not pass as rounding.
TEST(Gemm, ToleranceOfFp8IsLessThanAScaleMakes) {
  OpCase c = gemm_case(fp8(Scaling::kRowWise), {.loop = {.tile = kSmallTile}}, 37, test_seed());
  GemmDesc plain = fp8(Scaling::kNone);
  ProductShape shape{.m = 37, .n = plain.n, .k = plain.k};
  Values unscaled = product_reference(input_of(c, 0, "a"), input_of(c, 0, "b"), shape);
  const Values& want = c.expected[0][static_cast<std::size_t>(c.program.find_tensor("c"))];
  int apart = 0;
  for (std::size_t i = 0; i < unscaled.size(); ++i) {
    double allowed = c.tolerance * (std::fabs(want[i]) + c.scale);
    apart += std::fabs(unscaled[i] - want[i]) > allowed ? 1 : 0;
  }
  EXPECT_GT(apart, static_cast<int>(unscaled.size()) * 9 / 10);
}

TEST(Gemm, DefaultConfigOfADecodeStep) {
  GemmDesc d{.m = 3, .n = 700, .k = 600, .b_dtype = DType::kBF16};
  expect_gemm(d, default_config(d));
}

// On GPUs, large products of e4m3 factors with scales of rows have warpgroups that end apart, but
// where tiles of another width leave fewer SMs idle.
TEST(Gemm, DefaultConfigOfScaledRowsOnGpus) {
  auto config = [](std::int64_t m, std::int64_t n, Scaling scaling) {
    DType bytes = DType::kF8E4M3;
    GemmDesc d{.m = m, .n = n, .k = 8192, .a_dtype = bytes, .b_dtype = bytes};
    d.c_dtype = DType::kBF16;
    d.scaling = scaling;
    return to_string(default_config(d, Target::kCuda));
  };
  auto apart = [](const std::string& text) {
    return text.find("tile=128x192x128") == 0 &&
           text.find("stagger=3 store_slots=4") != std::string::npos;
  };
  EXPECT_TRUE(apart(config(8192, 8192, Scaling::kRowWise)));
  EXPECT_TRUE(apart(config(4096, 16384, Scaling::kRowWise)));
  EXPECT_FALSE(apart(config(8192, 8192, Scaling::kBlock)));
  EXPECT_FALSE(apart(config(1024, 4096, Scaling::kRowWise)));
  EXPECT_FALSE(apart(config(2048, 8192, Scaling::kRowWise)));
}

// The same bits at every launch, whoever comes first, with parts of k that do not divide its steps,
// more tiles than workers, fewer rows than the bound.
TEST(Gemm, SplitK) {
  GemmDesc d = kRagged;
  d.bias = d.residual = true;
  for (int parts : {2, 3}) {
    for (int workers : {1, 2, 5}) {
      expect_gemm(
          d,
          {.loop = {.tile = {.bm = 8, .bn = 12, .bk = 10}, .num_compute_sms = workers, .raster = 2},
           .split_k = parts});
    }
  }
  d.swiglu = true;
  d.residual = false;
  expect_gemm(d,
              {.loop = {.tile = kSmallTile, .num_compute_sms = 2, .num_stages = 2}, .split_k = 3});
}

TEST(Gemm, SplitKOfFp8) {
  GemmDesc d = fp8(Scaling::kRowWise);
  expect_gemm(d, {.loop = {.tile = kSmallTile, .num_compute_sms = 3}, .split_k = 4});
  d = fp8(Scaling::kBlock);
  GemmTile tile{.bm = 16, .bn = 64, .bk = 64};
  expect_gemm(d, {.loop = {.tile = tile, .num_compute_sms = 3, .num_stages = 2}, .split_k = 2});
}

// Tiles of any number of rows, with weights either way, whole and in parts of k.
TEST(Gemm, WeightsAsTheLeftFactor) {
  for (bool b_kn : {false, true}) {
    for (int parts : {1, 3}) {
      GemmDesc d = kRagged;
      d.b_kn = b_kn;
      const GemmTile tile{.bm = 12, .bn = 8, .bk = 10};
      expect_gemm(d, {.loop = {.tile = tile, .num_compute_sms = 3, .raster = 2},
                      .split_k = parts,
                      .swap_ab = true});
    }
  }
  GemmDesc d = kRagged;
  d.bias = true;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}, .swap_ab = true}); },
                    "swap_ab is for products without bias");
}

// Where tiles of 128 rows are half empty or leave SMs idle, tiles of as many rows as there are are
// among the candidates, none of which takes more shared memory than a block has.
TEST(Gemm, FewRowsAreOfferedTilesThatFit) {
  for (std::int64_t m : {8, 90, 136, 200, 272, 512}) {
    GemmDesc d{.m = m, .n = 5120, .k = 8192};
    d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
    int swapped = 0;
    for (const GemmConfig& c : gpu_configs(d, GpuTarget{.sms = 132})) {
      if (!c.swap_ab) continue;
      ++swapped;
      EXPECT_LT(c.loop.tile.bm * ceil_div(m, c.loop.tile.bm) - m, 16) << to_string(c);
      EXPECT_TRUE(has_gpu_lowering(lower(gemm(d, c)))) << to_string(c);
    }
    EXPECT_GE(swapped, 2);
  }
}

TEST(Gemm, ReferenceIsTheProductWithTheTranspose) {
  Values product = product_reference({1, 2, 3, 4}, {5, 6, 7, 8}, {.m = 2, .n = 2, .k = 2});
  EXPECT_EQ(product, (Values{17, 23, 39, 53}));
}

TEST(Gemm, BadDescOrConfigNamesTheField) {
  GemmDesc d = kRagged;
  d.k = 0;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); }, "k is 0");
  d = kRagged;
  d.b_dtype = DType::kI32;
  expect_user_error([&] { gemm(d, {.loop = {.tile = kSmallTile}}); }, "b_dtype is int32");
  expect_user_error([&] { gemm(kRagged, {.loop = {.tile = {.bm = 8, .bn = -4, .bk = 8}}}); },
                    "tile.bn is -4");
  expect_user_error([&] { gemm(kRagged, {.loop = {.tile = kSmallTile, .num_compute_sms = 0}}); },
                    "num_compute_sms is 0");
  expect_user_error([&] { gemm(kRagged, {.loop = {.tile = kSmallTile}, .split_k = 4}); },
                    "split_k is 4, but k has 3 steps of 20");
}

TEST(RowRuns, EveryRowHasOneOwnerAndEveryBlockOneChannel) {
  constexpr std::int64_t kBound = 23;
  for (int world = 1; world <= 8; ++world) {
    for (std::int64_t block_rows : {1, 3, 8}) {
      for (std::int64_t channels : {1, 2, 5}) {
        for (std::int64_t m = 0; m <= kBound; ++m) {
          RowRuns runs(m, {.m_bound = kBound,
                           .world_size = world,
                           .block_rows = block_rows,
                           .channels = channels});
          std::int64_t next = 0, blocks = 0;
          for (int owner = 0; owner < world; ++owner) {
            std::int64_t rows = runs.num_rows(owner).const_value();
            if (rows == 0) continue;
            EXPECT_EQ(runs.first_row(owner).const_value(), next);
            EXPECT_LE(rows, runs.num_blocks() * block_rows);
            next += rows;
          }
          EXPECT_EQ(next, m);
          for (std::int64_t c = 0; c < runs.num_channels(); ++c) {
            blocks += runs.blocks_in(c).const_value();
          }
          EXPECT_EQ(blocks, runs.num_blocks());
          EXPECT_LE(runs.num_channels(), channels);
          EXPECT_EQ(runs.channel_of(runs.num_blocks() - 1).const_value(), runs.num_channels() - 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace stretto
