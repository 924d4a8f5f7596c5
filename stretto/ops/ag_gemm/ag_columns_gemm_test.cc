// If these fail, a layer whose rows are spread by columns multiplies columns that have not arrived,
// or gives wrong numbers for some split of columns, tiles and transfers.
#include "stretto/ops/ag_gemm/ag_columns_gemm.h"

#include <gtest/gtest.h>

#include "stretto/testing/cases/ag_columns_case.h"
#include "stretto/testing/cases/case_testing.h"

namespace stretto {
namespace {

// Steps do not divide a rank's columns, nor transfers the tiles' rows.
AgColumnsConfig small(Gather gather, int num_stages = 0) {
  return {
      .loop = {.tile = {.bm = 4, .bn = 8, .bk = 8}, .num_compute_sms = 2, .num_stages = num_stages},
      .gather = gather,
      .num_gather_workers = 2,
      .comm_rows = 3};
}

class AgColumnsWays : public testing::TestWithParam<Gather> {
 protected:
  static void expect(const AgColumnsDesc& d, const AgColumnsConfig& cfg) {
    std::uint64_t seed = test_seed();
    for (std::int64_t m : {std::int64_t{0}, std::int64_t{1}, d.m - 3, d.m}) {
      expect_runs(ag_columns_case(d, cfg, m, seed), seed);
    }
  }
};

TEST_P(AgColumnsWays, MixedDtypesWithBias) {
  for (int world : {1, 2, 5}) {
    for (bool b_kn : {false, true}) {
      for (int stages : {0, 2}) {
        expect({.world_size = world,
                .m = 21,
                .n = 17,
                .k = 13 * world,
                .b_dtype = DType::kBF16,
                .bias = true,
                .b_kn = b_kn},
               small(GetParam(), stages));
      }
    }
  }
}

TEST_P(AgColumnsWays, Doubles) {
  expect({.world_size = 3,
          .m = 21,
          .n = 17,
          .k = 51,
          .a_dtype = DType::kF64,
          .b_dtype = DType::kF64,
          .c_dtype = DType::kF64},
         small(GetParam()));
}

// Scales of rows differ from rank to rank; those of blocks travel with their columns.
TEST_P(AgColumnsWays, Fp8) {
  AgColumnsDesc d{.world_size = 3,
                  .m = 21,
                  .n = 17,
                  .k = 3 * 37,
                  .a_dtype = DType::kF8E4M3,
                  .b_dtype = DType::kF8E4M3,
                  .bias = true,
                  .scaling = Scaling::kRowWise};
  expect(d, small(GetParam()));
  d.scaling = Scaling::kBlock;
  d.k = 3 * 256;
  AgColumnsConfig cfg = small(GetParam());
  cfg.loop.tile.bk = 64;
  expect(d, cfg);
  cfg.loop.num_stages = 2;
  expect(d, cfg);
}

// A column that only one rank has must not meet the weights of the next rank's columns, which may
// be infinite.
TEST_P(AgColumnsWays, StepsEndWithARanksColumns) {
  AgColumnsDesc d{.world_size = 2, .m = 8, .n = 9, .k = 2 * 13};
  std::uint64_t seed = test_seed();
  OpCase c = ag_columns_case(d, small(GetParam()), d.m, seed);
  auto b = static_cast<std::size_t>(c.program.find_tensor("b"));
  auto a = static_cast<std::size_t>(c.program.find_tensor("a"));
  for (std::size_t row = 0; row < 8; ++row) c.inputs[1][a][row * 13] = 1;  // column 13 of all
  for (std::vector<Values>& of_rank : c.inputs) {
    for (std::size_t n = 0; n < 9; ++n) of_rank[b][n * 26 + 13] = 1e300 * 1e300;
  }
  auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
  for (std::vector<Values>& of_rank : c.expected) {
    for (double& v : of_rank[out]) v = 1e300 * 1e300;
  }
  expect_runs(c, seed);
}

INSTANTIATE_TEST_SUITE_P(Ways, AgColumnsWays, testing::Values(Gather::kSend, Gather::kPush),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(AgColumnsGemm, BadFieldsAreNamed) {
  AgColumnsDesc d{.world_size = 2, .m = 21, .n = 17, .k = 26};
  expect_user_error([&] { ag_columns_gemm(d, small(Gather::kPull)); },
                    "ag_columns_gemm: gather is pull, can only be send or push");
  AgColumnsConfig cfg = small(Gather::kSend);
  cfg.comm_rows = 0;
  expect_user_error([&] { ag_columns_gemm(d, cfg); }, "ag_columns_gemm: comm_rows is 0");
  d.k = 27;
  expect_user_error([&] { ag_columns_gemm(d, small(Gather::kSend)); },
                    "k is 27, need a multiple of 2 for 2 ranks");
  d.k = 2 * 200;
  d.scaling = Scaling::kBlock;
  d.a_dtype = d.b_dtype = DType::kF8E4M3;
  expect_user_error([&] { ag_columns_gemm(d, small(Gather::kSend)); },
                    "k is 400, need a multiple of 256 for 2 ranks with scales of blocks");
}

}  // namespace
}  // namespace stretto
