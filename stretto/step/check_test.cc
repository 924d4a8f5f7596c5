// Plans that do not make sense are refused before they run, with the node's name. If these fail, a
// model's step reads what nobody wrote, on some sizes only.
#include "stretto/step/check.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/base/errors.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

std::string refusal(const Plan& plan) {
  try {
    check(plan);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(StepCheck, TakesAChain) { EXPECT_EQ(refusal(chain(5)), ""); }

TEST(StepCheck, TakesTheFirstRowsOfABuffer) {
  Plan plan = chain(5);
  plan.buffers[0].shape[0] = Size::of(20);
  EXPECT_EQ(refusal(plan), "");
  plan.buffers[0].shape[0] = Size::of(5);
  EXPECT_NE(refusal(plan).find("384 elements are bound to 320"), std::string::npos);
}

struct Mistake {
  std::string says;
  std::function<void(Plan&)> make;
};

TEST(StepCheck, NamesTheNodeAndTheMistake) {
  std::vector<Mistake> mistakes = {
      {"node 'n1': reads 'x3', which no node before it writes",
       [](Plan& p) { p.nodes[1].bindings[0].buffer = p.find_buffer("x3"); }},
      {"node 'n2': reads 'x1', which no node before it writes",
       [](Plan& p) {
         p.nodes.erase(p.nodes.begin() + 1);
         p.sections[0].end = p.nodes.size();
       }},
      {"node 'n1': writes 'weight', which is constant",
       [](Plan& p) { p.nodes[1].bindings[2].buffer = 1; }},
      {"node 'n1': writes 'in', which is an input",
       [](Plan& p) { p.nodes[1].bindings[2].buffer = 0; }},
      {"node 'n2': binds 'x1' twice and writes it",
       [](Plan& p) { p.nodes[2].bindings[2].buffer = p.nodes[2].bindings[0].buffer; }},
      {"node 'n0': 'a' = 'in': float32 is bound to bfloat16",
       [](Plan& p) { p.buffers[0].dtype = DType::kBF16; }},
      {"node 'n0': 'a' = 'in': 384 elements are bound to 768",
       [](Plan& p) { p.buffers[0].shape.push_back(Size::of(2)); }},
      {"node 'n3': tensor 'b' of 'add' is not bound",
       [](Plan& p) { p.nodes[3].bindings.erase(p.nodes[3].bindings.begin() + 1); }},
      {"node 'n3': binds 'b' twice",
       [](Plan& p) { p.nodes[3].bindings.push_back(p.nodes[3].bindings[1]); }},
      {"node 'n3': 'add' has no tensor 'c'", [](Plan& p) { p.nodes[3].bindings[0].tensor = "c"; }},
      {"node 'n3': 'add' takes 1 extents, not 0", [](Plan& p) { p.nodes[3].extents.clear(); }},
      {"node 'n3': extent 'm' of 'add' may be 12, its bound is 6",
       [](Plan& p) { p.nodes[3].extents[0].factor = 2; }},
      {"node 'n3': runs a program that there is not", [](Plan& p) { p.nodes[3].program = 2; }},
      {"node 'n3': binds 'a' to a buffer that there is not",
       [](Plan& p) { p.nodes[3].bindings[0].buffer = 70; }},
      {"two nodes 'n1'", [](Plan& p) { p.nodes[3].name = "n1"; }},
      {"two buffers 'x1'", [](Plan& p) { p.buffers[2].name = "x1"; }},
      {"nodes stand in no section", [](Plan& p) { p.sections[0].end = 2; }},
      {"section 'body' does not follow the one before", [](Plan& p) { p.sections[0].end = 99; }},
      {"program 1 ('add'): is for 2 ranks, the step has 1 in groups of 1",
       [](Plan& p) { p.programs[1] = add_program(0, 2); }},
      {"3 ranks in groups of 2", [](Plan& p) { p.group_size = 2, p.num_ranks = 3; }},
      {"a size of an unknown extent", [](Plan& p) { p.buffers[2].shape[0] = Size::of_extent(9); }},
      {"buffer 'x0' is too large",
       [](Plan& p) {
         p.buffers[2].shape = {3, Size::of(std::int64_t{1} << 39)};
       }},
  };
  for (const Mistake& m : mistakes) {
    Plan plan = chain(5);
    m.make(plan);
    EXPECT_NE(refusal(plan).find(m.says), std::string::npos) << m.says << "\n" << refusal(plan);
  }
}

// out [m, 64] = a + number, on rank `root` alone.
Program give_program(int root) {
  ProgramBuilder p("give", 2);
  Index m = p.extent("m", kTestRows);
  TensorRef a = p.input("a", DType::kF32, {m, kTestCols});
  TensorRef out = p.output("out", DType::kF32, {m, kTestCols}, {.given_on = p.rank() == root});
  p.role("give", Resource::sms(1), p.range(m), [&](const Tile& t) {
    p.when(p.rank() == root, [&] {
      p.store(out.tile({t.index, 0}, 1, kTestCols), p.load(a.tile({t.index, 0}, 1, kTestCols)));
    });
  });
  return p.finish();
}

// On the others the memory holds anything.
TEST(StepCheck, WhatOneRankIsGivenNoOtherReads) {
  Plan plan = chain(3);
  plan.group_size = plan.num_ranks = 2;
  plan.programs = {add_program(1, 2), add_program(0.5, 2), give_program(1), give_program(0)};
  // n1 = {x0, weight} -> x1 becomes x0 -> x1, where only rank 1 has x1, which n2 and n3 read.
  plan.nodes[1].program = 2;
  plan.nodes[1].bindings.erase(plan.nodes[1].bindings.begin() + 1);
  EXPECT_NE(refusal(plan).find("node 'n2': reads 'x1' on every rank, and rank 0 does not have it"),
            std::string::npos)
      << refusal(plan);
  // Where another node gives it to the other rank, both have it.
  Node other = plan.nodes[1];
  other.name = "n1.2";
  other.program = 3;
  plan.nodes.insert(plan.nodes.begin() + 2, other);
  plan.sections[0].end = plan.nodes.size();
  EXPECT_EQ(refusal(plan), "");
  // What all ranks had and read is gone once one rank is given something else there.
  Plan again = chain(3);
  again.group_size = again.num_ranks = 2;
  again.programs = {add_program(1, 2), add_program(0.5, 2), give_program(1)};
  other.program = 2;
  again.nodes.insert(again.nodes.begin() + 3, other);
  again.sections[0].end = again.nodes.size();
  EXPECT_NE(refusal(again).find("node 'n3': reads 'x1' on every rank, and rank 0 does not have it"),
            std::string::npos)
      << refusal(again);
  // An output of the step may be one rank's: the caller reads it there.
  Plan last = chain(1);
  last.group_size = last.num_ranks = 2;
  last.programs = {add_program(1, 2), give_program(1)};
  last.nodes[1].bindings.erase(last.nodes[1].bindings.begin() + 1);
  EXPECT_EQ(refusal(last), "");
}

// A state that is read needs no node before it; a local that is bound as one does.
TEST(StepCheck, LocalsThatAProgramUpdatesAreWrittenFirst) {
  Plan plan{.name = "keeping"};
  plan.extents = {{"rows", kTestRows}};
  Size rows = Size::of_extent(0), cols = Size::of(kTestCols);
  plan.buffers = {{.name = "in", .kind = BufferKind::kInput, .shape = {rows, cols}},
                  {.name = "kept", .kind = BufferKind::kState, .shape = {Size::of(8), cols}},
                  {.name = "out", .kind = BufferKind::kOutput, .shape = {rows, cols}}};
  plan.programs = {keep_program()};
  plan.nodes = {{.name = "keep",
                 .bindings = {{"x", 0, {}}, {"kept", 1, {}}, {"out", 2, {}}},
                 .extents = {rows}}};
  plan.sections = {{"body", 0, 1}};
  EXPECT_EQ(refusal(plan), "");
  plan.buffers[1].kind = BufferKind::kLocal;
  EXPECT_NE(refusal(plan).find("node 'keep': reads 'kept', which no node"), std::string::npos);
}

}  // namespace
}  // namespace stretto::step
