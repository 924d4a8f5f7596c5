// Plans that are made by names. If these fail, a model's step has buffers of another size, or nodes
// that work on others' buffers.
#include "stretto/step/plan_builder.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/step/check.h"
#include "stretto/step/plan_testing.h"
#include "stretto/step/text.h"

namespace stretto::step {
namespace {

const std::vector<Size> kAtBounds = {Size::of(kTestRows), Size::of(kTestCols)};

PlanBuilder begun() {
  PlanBuilder b("chain", 1, 1);
  EXPECT_EQ(b.extent("rows", kTestRows), 0);
  EXPECT_EQ(b.extent("some", kTestRows), 1);
  b.buffer({.name = "in", .kind = BufferKind::kInput, .shape = kAtBounds});
  b.buffer({.name = "weight", .kind = BufferKind::kConstant, .shape = kAtBounds});
  b.buffer({.name = "x0", .shape = kAtBounds});
  b.buffer({.name = "out", .kind = BufferKind::kOutput, .shape = kAtBounds});
  return b;
}

// As if it had been written out (plan_testing.h), but for the shape of what the caller gives.
TEST(PlanBuilder, MakesThePlanThatIsWrittenOut) {
  PlanBuilder b = begun();
  int first = b.program(add_program(1)), second = b.program(add_program(0.5));
  b.node("n0", first, {Size::of_extent(0)}, {{"a", "in"}, {"b", "weight"}, {"out", "x0"}});
  b.node("n1", second, {Size::of_extent(0)}, {{"a", "x0"}, {"b", "weight"}, {"out", "out"}});
  b.end_section("body");
  Plan plan = b.finish();
  check(plan);
  Plan expected = chain(1);
  expected.buffers[1].shape = kAtBounds;
  EXPECT_EQ(print(plan), print(expected));
}

TEST(PlanBuilder, CutsSectionsAndShapesBuffersByWholeTensors) {
  PlanBuilder b = begun();
  int add = b.program(add_program(1));
  b.node("n0", add, {Size::of_extent(0)}, {{"a", "in"}, {"b", "weight"}, {"out", "x0"}});
  b.end_section("body");
  // Of "out" it takes the rows behind others, which says nothing of its first dimension.
  b.node("n1", add, {Size::of_extent(1)},
         {{"a", "x0"}, {"b", "weight"}, {"out", "out", Size::of_extent(1)}});
  b.end_section("tail");
  Plan plan = b.finish();
  ASSERT_EQ(plan.sections.size(), 2u);
  EXPECT_EQ(plan.sections[0].end, 1u);
  EXPECT_EQ(plan.sections[1].begin, 1u);
  EXPECT_EQ(plan.sections[1].end, 2u);
  EXPECT_EQ(plan.buffers[2].shape[0], Size::of_extent(0)) << "of the first node that binds it";
  EXPECT_EQ(plan.buffers[3].shape, kAtBounds);
  EXPECT_EQ(plan.nodes[1].bindings[2].from, Size::of_extent(1));
}

TEST(PlanBuilder, KnowsNoOtherBuffers) {
  PlanBuilder b = begun();
  int add = b.program(add_program(1));
  EXPECT_THROW(b.node("n0", add, {Size::of_extent(0)}, {{"a", "x1"}}), InternalError);
}

}  // namespace
}  // namespace stretto::step
