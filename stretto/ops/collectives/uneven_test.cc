// If these fail, exchanges whose sizes only the device knows lose rows, or write where there is no
// room for them.
#include "stretto/ops/collectives/uneven.h"

#include <gtest/gtest.h>

#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

const OpShape kShape = {.world_size = 3, .m = 12, .n = 20, .k = 30, .dtype = DType::kBF16};

OpShape with_wide_sizes(OpShape shape) {
  shape.sizes = {{"wide_sizes", 1}};
  return shape;
}

// A case in which every rank sends so many rows to each.
OpCase sending(const std::vector<double>& split, const OpShape& shape = kShape) {
  OpCase c = make_case(all_to_all_v_info(), shape, 0);
  for (auto& inputs : c.inputs) inputs[at(c.program.find_tensor("input_split_sizes"))] = split;
  return c;
}

TEST(Uneven, BadDescNamesTheField) {
  UnevenDesc d{.m = 4, .room = 0, .n = 3, .world_size = 2};
  expect_user_error([&] { all_to_all_v(d, {}); }, {"all_to_all_v: room is 0, must be at least 1"});
  d.room = 9;
  expect_user_error([&] { all_gather_v(d, {.threads = 100}); }, {"threads is 100"});
  d.m = std::int64_t{1} << 30;
  expect_user_error([&] { all_gather_v(d, {}); }, {"too many rows to number"});
}

// Many seeds, one instance: empty, even, one-sided and random sizes after each other.
TEST(Uneven, SizesChangeFromLaunchToLaunch) {
  std::uint64_t seed = test_seed() % 100'000;
  for (const OperatorInfo& op : {all_to_all_v_info(), all_gather_v_info()}) {
    for (int world = 1; world <= 4; ++world) {
      for (OpShape shape : {kShape, with_wide_sizes(kShape)}) {
        shape.world_size = world;
        for (const auto& cases : cases_of_seeds(op, shape, seed, 12)) {
          EXPECT_EQ(run_cases(cases, {.launches = 1, .seed = seed, .delay_probability = 0.02}), "");
        }
      }
    }
  }
}

TEST(Uneven, MoreThanThereIsRoomForIsAFault) {
  expect_fault(
      [] {
        run_case(sending({11, 0, 0}));
      },
      {"table 'rows_for_max_rows'", "entry 0 is 33, need 0 <= entry < 31"});
  expect_fault([] { run_case(sending({5, 5, 5})); }, {"table 'rows_sent'", "entry 0 is 15"});
  expect_fault([] { run_case(sending({1, -1, 1})); }, {"table 'input_split_sizes'", "-1"});
  expect_fault([] { run_case(sending({1, 13, 1})); }, {"table 'input_split_sizes'", "13"});
}

// Whose low half is a size that there is room for.
TEST(Uneven, WideSizesAreHeldAgainstTheirContractWhole) {
  OpShape wide = with_wide_sizes(kShape);
  EXPECT_EQ(make_case(all_to_all_v_info(), wide, 0).program.tensors[1].dtype, DType::kI64);
  expect_fault(
      [&] {
        run_case(sending({1, 0x1p32 + 1, 1}, wide));
      },
      {"table 'input_split_sizes'", "4294967297"});
  expect_fault([&] { run_case(sending({1, -0x1p40, 1}, wide)); }, {"table 'input_split_sizes'"});
  expect_fault([&] { run_case(sending({5, 5, 5}, wide)); }, {"table 'rows_sent'", "entry 0 is 15"});
}

}  // namespace
}  // namespace stretto
