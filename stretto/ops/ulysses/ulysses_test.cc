// If these fail, a prompt whose tokens are spread over the ranks reads another token's heads, or
// the residual stream of a layer is lost.
#include <gtest/gtest.h>

#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/ulysses_case.h"

namespace stretto {
namespace {

// What the model has under float32: weights that stay as the checkpoint has them.
UlyssesDesc mixed(int world_size) {
  return {.world_size = world_size,
          .m = 21,
          .n = 5 * world_size,
          .k = 8 * world_size,
          .dtype = DType::kF32,
          .weight_dtype = DType::kBF16,
          .bias = true};
}

UlyssesConfig small() {
  return {.loop = {.tile = {.bm = 2, .bn = 3, .bk = 4}, .num_compute_sms = 2}};
}

UlyssesConfig small_copies() {
  UlyssesConfig c = small();
  c.comm_rows = 4;
  c.num_queues = 2;
  return c;
}

// From nothing to all rows; of 1 only one rank has any.
const std::int64_t kRows[] = {0, 1, 18, 21};

TEST(Ulysses, WeightsOfSixteenBitsBesideTokensOfThirtyTwo) {
  std::uint64_t seed = test_seed();
  for (int world : {1, 2, 5}) {
    for (std::int64_t m : kRows) expect_runs(gemm_a2a_case(mixed(world), small(), m, seed), seed);
  }
}

TEST(Ulysses, ResidualOfTheOwnTokens) {
  std::uint64_t seed = test_seed();
  for (int world : {1, 2, 5}) {
    for (bool bias : {false, true}) {
      UlyssesDesc d = mixed(world);
      d.bias = bias;
      d.residual = true;
      for (std::int64_t m : kRows) expect_runs(a2a_gemm_case(d, small_copies(), m, seed), seed);
    }
  }
}

TEST(Ulysses, BadFieldsAreNamed) {
  UlyssesDesc d = mixed(2);
  d.residual = true;
  expect_user_error([&] { gemm_a2a(d, small()); }, "gemm_a2a: residual is for a2a_gemm");
  expect_user_error([&] { gemm_a2a(mixed(2), small_copies()); },
                    "comm_rows is 4, can only be 0: SMs store tiles");
  d.weight_dtype = DType::kI32;
  expect_user_error([&] { a2a_gemm(d, small_copies()); }, "a2a_gemm: weight_dtype is int32");
}

}  // namespace
}  // namespace stretto
