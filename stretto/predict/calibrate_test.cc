// What a user would lose: a machine file that explains what they measured.
#include "stretto/predict/calibrate.h"

#include <gtest/gtest.h>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"
#include "stretto/ir/parser.h"

namespace stretto::predict {
namespace {

// `bytes` moved by one SM per tile, which is all latency or all bandwidth.
Lowered copies(int tiles, int cols) {
  std::string n = std::to_string(cols), rows = std::to_string(tiles);
  return lower(parse(
      "program \"copies\" world 1 level schedule {\n  rank %rank\n  tile %t\n"
      "  input @in : f32[" +
          rows + ", " + n + "]\n  output @out : f32[" + rows + ", " + n +
          "]\n  on_start on_start body {\n  }\n  role copy sms 1 tiles %t < " + rows +
          " {\n    agent body body {\n      copy @in[%t, 0] tile [1, " + n +
          "] to @out[%t, 0] tile [1, " + n + "]\n    }\n  }\n  on_end on_end body {\n  }\n}\n",
      "test", MissingLocs::kFill));
}

TEST(Calibrate, FindsTheFiguresThatExplainTheTimes) {
  Machine truth = find_machine("h200x1"), start = truth;
  truth.load_latency = 1.3e-6;
  truth.sm_copy_rate = 25e9;
  const Lowered programs[] = {copies(50, 16), copies(10, 65536), copies(20, 8192)};
  std::vector<MeasuredProgram> measured;
  for (const Lowered& p : programs) measured.push_back({p, {}, predict(p, truth).time_ms});
  Fit found = fit(start, measured, {"memory/latency_us", "memory/sm_copy_gbs"}, 20);
  EXPECT_LT(found.error, 0.02);
  EXPECT_NEAR(found.machine.load_latency, 1.3e-6, 0.1e-6);
  EXPECT_NEAR(found.machine.sm_copy_rate, 25e9, 2e9);
}

TEST(Calibrate, IsNeverWorseThanItsStart) {
  Machine start = find_machine("h200x1");
  Lowered p = copies(10, 1024);
  double now = predict(p, start).time_ms;
  Fit found = fit(start, {{p, {}, now}});
  EXPECT_LT(found.error, 1e-12);
  EXPECT_EQ(to_json(found.machine), to_json(start));
}

TEST(Calibrate, TakesMeasuredFigures) {
  Machine m = with_figures(find_machine("h200x4"),
                           {{"memory", {{"hbm_gbs", 4100}}}, {"copy_engine", {{"gbs", 380}}}}, "f");
  EXPECT_DOUBLE_EQ(m.hbm_rate, 4100e9);
  EXPECT_DOUBLE_EQ(m.copy_rate, 380e9);
  EXPECT_DOUBLE_EQ(m.link_latency, 0.9e-6);
}

TEST(Calibrate, RefusesWhatCannotBe) {
  Machine m = find_machine("h200x1");
  Lowered p = copies(1, 16);
  expect_user_error([&] { fit(m, {}); }, {"no measured programs"});
  expect_user_error([&] { fit(m, {{p, {}, 0}}); }, {"copies", "0 ms"});
  expect_user_error([&] { fit(m, {{p, {}, 1}}, {"memory/speed"}); }, {"memory/speed"});
  expect_user_error(
      [&] {
        with_figures(m, {{"memory", {{"hbm", 1}}}}, "f.json");
      },
      {"f.json: memory: hbm: no such figure"});
  expect_user_error(
      [&] {
        with_figures(m, {{"memory", {{"hbm_gbs", -1}}}}, "f.json");
      },
      {"f.json: memory: hbm_gbs"});
}

}  // namespace
}  // namespace stretto::predict
