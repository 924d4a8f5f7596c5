// Predicted steps. If these fail, a plan's price is not that of its launches.
#include "stretto/step/predict.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/predict/prediction.h"
#include "stretto/step/memory.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

TEST(StepPrediction, IsTheSumOfItsLaunches) {
  predict::Machine machine = predict::find_machine("h200x1");
  Plan plan = chain(4);  // five nodes, programs in turn
  StepPrediction p = predict(plan, machine, {.values = {6, 0}});
  ASSERT_EQ(p.nodes.size(), 5u);
  double sum = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    double alone = predict::predict(lower(plan.programs[i % 2]), machine).time_ms;
    EXPECT_DOUBLE_EQ(p.nodes[i].time_ms, alone);
    sum += alone;
  }
  EXPECT_DOUBLE_EQ(p.time_ms, sum);
}

TEST(StepPrediction, PassesOverWhatHasNoRows) {
  predict::Machine machine = predict::find_machine("h200x1");
  Plan plan = chain(4);
  plan.nodes[2].extents = {Size::of_extent(1)};
  EXPECT_EQ(predict(plan, machine, {.values = {6, 0}}).nodes.size(), 4u);
  EXPECT_EQ(predict(plan, machine, {.values = {6, 2}}).nodes.size(), 5u);
}

TEST(StepPrediction, CountsTheBytesOfARank) {
  Plan plan = chain(4);
  StepBytes bytes = bytes_of(plan);
  EXPECT_EQ(bytes.constants, static_cast<std::size_t>(kTestRows * kTestCols * 4));
  EXPECT_EQ(bytes.state, 0u);
  EXPECT_EQ(bytes.work, assign(plan).total());
  EXPECT_EQ(bytes.total(), bytes.constants + bytes.work + bytes.programs);
}

TEST(StepPrediction, RefusesWhatIsNoPlan) {
  Plan plan = chain(4);
  plan.nodes[1].bindings[0].buffer = 4;
  EXPECT_THROW(predict(plan, predict::find_machine("h200x1"), {.values = {6, 0}}), UserError);
}

}  // namespace
}  // namespace stretto::step
