// If these fail, predictions are of tables that no launch has: tokens that all go to one expert, or
// work that a table ends and the prediction goes on with.
#include "stretto/predict/launch_tables.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/ir/parser.h"
#include "stretto/predict/prediction.h"
#include "stretto/predict/test_machine.h"

namespace stretto::predict {
namespace {

constexpr int kMost = 1000;
constexpr double kMicro = 1e-6;

// Each rank's only worker loads a row of 16 bytes in as many iterations as its table says.
Lowered rows_of_table() {
  return lower(parse(R"(program "rows" world 2 level schedule {
  rank %rank
  tile %t
  loop %i
  let %begin
  let %end
  input @count : i32[2] contract range 0, 1001
  input @in : f32[1000, 4]
  on_start on_start body {
  }
  role load sms 1 tiles %t < 1 {
    agent body body threads 128 {
      values $0: f32[1, 4], $1: f32[1, 4]
      let %begin = @count[0]
      let %end = @count[1]
      loop %i from 0 to 1000 {
        when %begin <= %i && %i < %end {
          $0 = load @in[%i, 0] tile [1, 4]
          $1 = binary add $0, $0
        }
      }
    }
  }
  on_end on_end body {
  }
}
)",
                     "test", MissingLocs::kFill));
}

double rows_loaded(const LaunchTables& tables) {
  Machine m = round_machine(2);
  m.load_latency = kMicro;
  return predict(rows_of_table(), m, {.timetable = {.tables = tables}}).time_ms * 1e-3 / kMicro;
}

LaunchTables rows(std::int32_t begin, std::int32_t end, std::int32_t on_second = 0) {
  return [=](const std::vector<std::int64_t>&) -> std::vector<TableValues> {
    return {{{"count", {begin, end}}}, {{"count", {0, on_second}}}};
  };
}

TEST(LaunchTables, AConditionEndsTheWorkWhereTheTableSays) {
  for (std::int32_t end : {1, 2, 7, 31, 32, 33, 100, 500, 968, 999, kMost}) {
    EXPECT_NEAR(rows_loaded(rows(0, end)), end, 0.1) << end;
  }
  EXPECT_NEAR(rows_loaded(rows(400, 700)), 300, 0.1);
  EXPECT_NEAR(rows_loaded(rows(0, 0)), 0, 0.1);
}

TEST(LaunchTables, EveryRankHasItsOwn) {
  EXPECT_NEAR(rows_loaded(rows(0, 100, 700)), 700, 0.1) << "the slowest rank";
}

TEST(LaunchTables, WhatIsNotKnownIsTheLargest) {
  EXPECT_NEAR(rows_loaded({}), 0, 0.1) << "from 1000 on";
  auto others = [](const std::vector<std::int64_t>&) {
    return std::vector<TableValues>(2, {{"of_another_program", {1}}});
  };
  EXPECT_EQ(rows_loaded(others), rows_loaded({}));
}

TEST(LaunchTables, WhatBreaksItsContractIsOurMistake) {
  EXPECT_THROW(rows_loaded(rows(0, kMost + 1)), InternalError);
  auto too_many = [](const std::vector<std::int64_t>&) {
    return std::vector<TableValues>(2, {{"count", {0, 1, 2}}});
  };
  EXPECT_THROW(rows_loaded(too_many), InternalError);
}

}  // namespace
}  // namespace stretto::predict
