// Pipes that share their slots: one queue whose gets are in the order of puts, whoever makes them.
#include <gtest/gtest.h>

#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/verifier.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"

namespace stretto::shared_slots_test {
namespace {

// A producer fills two pipes of `slots` slots, `steps` in each; the first consumer begins with
// `first` and the second ends with `last`.
std::string two_consumers(const std::string& shares, int slots, int steps, const std::string& first,
                          const std::string& last) {
  auto number = [](int i) { return std::to_string(i); };
  auto pipe = [&](const char* name, const char* consumer) {
    return std::string("pipe ") + name + " : f32[8, 8] slots " + number(slots) +
           " swizzle b32 producer load consumer " + consumer;
  };
  auto loop = [&](const std::string& var, const std::string& body) {
    return "loop %" + var + " from 0 to " + number(steps) + " {\n" + body + "}\n";
  };
  return "program \"shared\" world 1 level schedule {\nrank %rank\ntile %t\n"
         "loop %i\nloop %j\nloop %k\nloop %l\nloop %n\n"
         "input @a : f32[8, " +
         number(8 * steps) +
         "]\noutput @c : f32[16, 8]\n"
         "role r sms 1 tiles %t < 1 {\n" +
         pipe("p", "one") + "\n" + pipe("q", "two") + shares +
         "\nbarrier met arrivals 2\n"
         "agent load producer {\n" +
         loop("i", "pipe_put p = @a[0, %i * 8] tile [8, 8]\n") +
         loop("j", "pipe_put q = @a[0, %j * 8] tile [8, 8]\n") +
         "}\nagent one consumer {\nvalues $0: f32[8, 8], $1: f32[8, 8]\n" + first +
         "$0 = fill 0\n" + loop("k", "$1 = pipe_get p\n$0 = binary add $0, $1\npipe_release p\n") +
         "store $0 to @c[0, 0] tile [8, 8]\n}\n"
         "agent two consumer {\nvalues $0: f32[8, 8], $1: f32[8, 8]\n$0 = fill 0\n" +
         loop("l", "$1 = pipe_get q\n$0 = binary add $0, $1\npipe_release q\n") +
         "store $0 to @c[8, 0] tile [8, 8]\n" + last + "}\n}\n}\n";
}
constexpr const char* kShares = " shares p";
constexpr const char* kMeet = "barrier_sync met\n";

ProofResult proof(const std::string& text) {
  Program program = parse(text, "shared");
  verify(program);
  return prove(program);
}

TEST(SharedSlots, ConsumersInTurnAreProved) {
  for (int steps : {1, 3, 40}) {
    ProofResult r = proof(two_consumers(kShares, 3, steps, "", ""));
    EXPECT_TRUE(r.proved()) << steps << " steps\n" << r.report;
  }
}

// The first consumer waits until the second has got all of its slots. Of pipes with slots enough
// of their own it may.
TEST(SharedSlots, AConsumerThatWaitsForTheNextIsRejected) {
  EXPECT_TRUE(proof(two_consumers("", 3, 3, kMeet, kMeet)).proved());
  ProofResult r = proof(two_consumers(kShares, 6, 3, kMeet, kMeet));
  EXPECT_TRUE(r.rejected());
  EXPECT_NE(r.report.find("turn of the consumer of pipe 'p'"), std::string::npos) << r.report;
}

// Slots that the first holds are not there for the second.
TEST(SharedSlots, SlotsThatNobodyFreesAreRejected) {
  std::string text = two_consumers(kShares, 3, 3, "", "");
  const std::string take = "loop %k from 0 to 3 {\n$1 = pipe_get p\n$0 = binary add $0, $1\n";
  std::string loop = take + "pipe_release p\n}\n", held = take + "}\n";
  std::string freed = "loop %n from 0 to 3 {\npipe_release p\n}\n";
  ASSERT_NE(text.find(loop), std::string::npos);
  std::string own = two_consumers("", 3, 3, "", kMeet);
  auto late = [&](std::string t) {
    t.replace(t.find(loop), loop.size(), held + kMeet + freed);
    return t;
  };
  EXPECT_TRUE(proof(late(own)).proved());
  EXPECT_TRUE(proof(late(two_consumers(kShares, 3, 3, "", kMeet))).rejected());
}

TEST(SharedSlots, TheTextFormSaysSo) {
  Program program = parse(two_consumers(kShares, 3, 3, "", ""), "shared");
  std::string text = print(program);
  EXPECT_NE(text.find("consumer two shares p"), std::string::npos) << text;
  EXPECT_EQ(print(parse(text, "printed")), text);
  EXPECT_EQ(parse(text, "printed").roles[0].pipes[1].shares, 0);
}

TEST(SharedSlots, WhatPipesMustHaveInCommon) {
  auto refused = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    try {
      verify(parse(text, "shared"));
      return std::string("accepted");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  std::string text = two_consumers(kShares, 3, 3, "", "");
  EXPECT_NE(refused(text, "q : f32[8, 8] slots 3", "q : f32[8, 8] slots 2").find("but differ in"),
            std::string::npos);
  EXPECT_NE(refused(text, "consumer two shares p", "consumer one shares p").find("one consumer"),
            std::string::npos);
  EXPECT_NE(refused(text, "shares p", "shares q").find("need one above"), std::string::npos);
}

// As many events whatever the length of the loop.
TEST(SharedSlots, LoopsOfTurnsFold) {
  auto events = [](std::int64_t steps) {
    ProgramBuilder p("product", 1);
    auto a = p.input("a", DType::kBF16, {128, steps * 16});
    auto b = p.input("b", DType::kBF16, {64, steps * 16});
    auto out = p.output("out", DType::kF32, {128, 64});
    p.role("multiply", Resource::sms(2).pipelined(3).ping_pong(2), p.grid(out, 16, 16),
           [&](const Tile& t) {
             Value acc = p.zeros(DType::kF32, 16, 16);
             p.loop(steps, [&](const Index& i) {
               acc = dot(acc, p.load(a.tile({t.row, i * 16}, 16, 16)),
                         p.load(b.tile({t.col, i * 16}, 16, 16)).T());
             });
             p.store(out.tile({t.row, t.col}, 16, 16), acc);
           });
    Program program = run_pipeline(p.finish());
    EXPECT_TRUE(prove(program).proved());
    return expand(program, {}, nullptr, PipeLoopMode::kFold).num_events();
  };
  EXPECT_EQ(events(40), events(400));
}

}  // namespace
}  // namespace stretto::shared_slots_test
