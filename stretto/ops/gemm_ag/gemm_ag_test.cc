// If these fail, a layer whose columns are spread over the ranks gives some rank columns that are
// wrong, of the launch before, or another rank's.
#include "stretto/ops/gemm_ag/gemm_ag.h"

#include <gtest/gtest.h>

#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/gemm_ag_case.h"

namespace stretto {
namespace {

GemmAgConfig small(int num_stages = 0) {
  return {.loop = {
              .tile = {.bm = 4, .bn = 8, .bk = 8}, .num_compute_sms = 2, .num_stages = num_stages}};
}

void expect(const GemmAgDesc& d, const GemmAgConfig& cfg) {
  std::uint64_t seed = test_seed();
  for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 3, d.m}) {
    expect_runs(gemm_ag_case(d, cfg, m, seed), seed);
  }
}

// Tiles that end with a rank's columns, and that reach past them.
TEST(GemmAg, MixedDtypesWithBias) {
  for (int world : {1, 2, 3, 5}) {
    for (std::int64_t n : {16, 17}) {
      for (int stages : {0, 2}) {
        expect({.world_size = world,
                .m = 21,
                .n = n,
                .k = 13,
                .b_dtype = DType::kBF16,
                .bias = true,
                .b_kn = stages == 0},
               small(stages));
      }
    }
  }
}

TEST(GemmAg, Doubles) {
  expect({.world_size = 3,
          .m = 21,
          .n = 17,
          .k = 51,
          .a_dtype = DType::kF64,
          .b_dtype = DType::kF64,
          .c_dtype = DType::kF64},
         small());
}

TEST(GemmAg, Fp8) {
  GemmAgDesc d{.world_size = 3,
               .m = 21,
               .n = 17,
               .k = 37,
               .a_dtype = DType::kF8E4M3,
               .b_dtype = DType::kF8E4M3,
               .bias = true,
               .scaling = Scaling::kRowWise};
  expect(d, small());
  d.scaling = Scaling::kBlock;
  d.k = 256;
  GemmAgConfig cfg = small(2);
  cfg.loop.tile.bk = 64;
  expect(d, cfg);
}

TEST(GemmAg, BadFieldsAreNamed) {
  GemmAgDesc d{.world_size = 2, .m = 21, .n = 17, .k = 26};
  GemmAgConfig cfg = small();
  cfg.loop.raster = 0;
  expect_user_error([&] { gemm_ag(d, cfg); }, "gemm_ag: raster is 0");
  d.n = 0;
  expect_user_error([&] { gemm_ag(d, small()); }, "gemm_ag: n is 0");
  d.n = 17;
  d.c_dtype = DType::kI32;
  expect_user_error([&] { gemm_ag(d, small()); }, "gemm_ag: c_dtype is int32");
}

}  // namespace
}  // namespace stretto
