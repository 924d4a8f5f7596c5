// What is said of a program that is refused. Without these an author would see that something is
// wrong, but not which line to change, and a slip in a number would end in hours or in a claim.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ir/walk_budget.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/print_instances.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/trace_recorder.h"

namespace stretto::reports_test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void expect_report(const Program& program, FindingKind kind,
                   const std::vector<std::string>& words) {
  ProofResult r = prove(run_pipeline(program));
  ASSERT_TRUE(r.rejected()) << "accepted a broken program";
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  for (const std::string& word : words) {
    EXPECT_NE(r.report.find(word), std::string::npos) << word << " is not in\n" << r.report;
  }
}

// A stream of tiles to the other rank through `slots` slots of its inbox, for which it gets
// `credits` at first.
Program stream(int credits, bool waits_for_credit) {
  constexpr int kSlots = 2, kCols = 4;
  ProgramBuilder p("stream", 2);
  auto in = p.input("in", DType::kF32, {5, kCols});
  auto inbox = p.buffer("inbox", DType::kF32, {kSlots, 1, kCols}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {5, kCols});
  auto free = p.signal("free"), sent = p.signal("sent");
  Index other = 1 - p.rank();
  p.on_start([&] { p.notify(free[p.rank()], other, credits); });
  p.role("send", Resource::sms(1), p.range(5), [&](const Tile& t) {
    if (waits_for_credit) p.wait(free[other], t.index + 1);
    p.store(inbox.on(other).tile({t.index % kSlots, 0, 0}, 1, kCols),
            p.load(in.tile({t.index, 0}, 1, kCols)));
    p.notify(sent, other);
  });
  p.role("add", Resource::sms(1), p.range(5), [&](const Tile& t) {
    p.wait(sent[other], t.index + 1);
    p.store(out.tile({t.index, 0}, 1, kCols),
            p.load(inbox.tile({t.index % kSlots, 0, 0}, 1, kCols)));
    p.notify(free[p.rank()], other);
  });
  return p.finish();
}

TEST(Reports, ARaceNamesTheWaitThatIsTooWeak) {
  EXPECT_TRUE(prove(run_pipeline(stream(2, true))).proved());
  expect_report(stream(3, true), FindingKind::kRace,
                {"nothing orders them: the wait at", "for signal 'free'", "to reach 3",
                 "may end without the notify at"});
}

TEST(Reports, ARaceSaysWhereNobodyWaits) {
  ProgramBuilder p("forgot", 1);
  auto buffer = p.buffer("b", DType::kF32, {1, 4});
  auto out = p.output("y", DType::kF32, {1, 4});
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(buffer.tile({0, 0}, 1, 4), p.zeros(DType::kF32, 1, 4));
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 1, 4), p.load(buffer.tile({0, 0}, 1, 4)));
  });
  expect_report(p.finish(), FindingKind::kRace,
                {"nothing orders them: neither waits for a signal that the other sends"});
}

// y[t] = x[origin(t)], t = 0..3.
Program shifted(const std::function<Index(const Index&)>& origin) {
  ProgramBuilder p("shifted", 1);
  auto x = p.input("x", DType::kF32, {4, 4});
  auto y = p.output("y", DType::kF32, {4, 4});
  p.role("copy", Resource::sms(1), p.range(4), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 4), p.load(x.tile({origin(t.index), 0}, 1, 4)));
  });
  return p.finish();
}

TEST(Reports, AnIndexWithoutAValueNamesItsLine) {
  EXPECT_TRUE(prove(run_pipeline(shifted([](const Index& t) { return t - 1; }))).proved());
  const std::string file = "reports_test.cc:";
  expect_report(shifted([](const Index& t) { return 5 / (t - 2); }), FindingKind::kIllFormed,
                {file, "an index is divided by zero"});
  expect_report(shifted([](const Index& t) { return t * kMost * 4; }), FindingKind::kIllFormed,
                {file, "an index leaves 64 bits"});
  expect_report(shifted([](const Index& t) { return kMost - t; }), FindingKind::kIllFormed,
                {file, "a box begins at"});
}

// What is wrong at a few of many sizes is said with one of them, also where no launch of it is
// there to be looked at.
TEST(Reports, WhatIsIllFormedAtSomeSizesNamesOne) {
  auto program = [](const std::function<Index(const Index& m)>& channel) {
    ProgramBuilder p("sized", 1);
    Index m = p.extent("m", 100);
    auto x = p.input("x", DType::kF32, {100, 8});
    auto y = p.output("y", DType::kF32, {m, 8});
    auto there = p.signal("there", 2);
    p.on_start([&] { p.loop(2, [&](const Index& i) { p.notify(there[i], p.rank()); }); });
    p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.wait(there[channel(m)], 1);
      p.store(y.tile({0, 0}, 100, 8), p.load(x.tile({0, 0}, 100, 8)));
    });
    return p.finish();
  };
  EXPECT_TRUE(prove(run_pipeline(program([](auto&) { return 1; }))).proved());
  expect_report(program([](auto& m) { return max(1, 3 - m); }), FindingKind::kIllFormed,
                {"channel 3 of 'there' does not exist", "with m = 0"});
  expect_report(program([](auto& m) { return 1 + (m == 37); }), FindingKind::kIllFormed,
                {"channel 2 of 'there' does not exist", "with m = 37"});
  expect_report(program([](auto& m) { return max(1, m - 98); }), FindingKind::kIllFormed,
                {"channel 2 of 'there' does not exist", "with m = 100"});
}

// A loop of 2^62 reads is as quick to prove as one of two where its boxes join, and refused where
// they leave what can be counted.
TEST(Reports, LongLoopsAreProvedOrRefusedAtOnce) {
  auto program = [](std::int64_t step) {
    ProgramBuilder p("loop", 1);
    auto x = p.input("x", DType::kF32, {4, 4});
    auto y = p.output("y", DType::kF32, {4, 4});
    p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value sum = p.zeros(DType::kF32, 4, 4);
      p.loop(kMost / 2, [&](const Index& i) { sum = sum + p.load(x.tile({i * step, 0}, 4, 4)); });
      p.store(y.tile({0, 0}, 4, 4), sum);
    });
    return p.finish();
  };
  EXPECT_TRUE(prove(run_pipeline(program(0))).proved());
  expect_report(program(4), FindingKind::kIllFormed, {"reports_test.cc:"});
}

// It takes as long as it takes to pass all that a proof looks at.
TEST(Reports, MoreTilesThanCanBeLookedAtAreALimitOfTheProof) {
  if (!is_drawn("more tiles than can be looked at", 4)) GTEST_SKIP() << "deferred to --long";
  ProgramBuilder p("many", 1);
  auto x = p.input("x", DType::kF32, {4, 4});
  auto y = p.output("y", DType::kF32, {4, 4});
  p.role("none", Resource::sms(1), p.range(std::int64_t{1} << 31), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 4, 4), p.load(x.tile({0, 0}, 4, 4)));
  });
  ProofResult r = prove(run_pipeline(p.finish()));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_FALSE(r.within_limits);
  ASSERT_EQ(r.missing.size(), 1u);
  EXPECT_NE(r.missing[0].where.find("reports_test.cc:"), std::string::npos);
  EXPECT_NE(r.missing[0].expression.find("more operations than can be looked at"),
            std::string::npos);
}

// A loop of notifies would fill the machine's memory.
TEST(Reports, NotifiesCountAsWhatIsKept) {
  ProgramBuilder p("notifies", 1);
  auto done = p.signal("done");
  p.on_start([&] { p.notify(done, 0); });
  const Program program = p.finish();
  const Op& notify = program.on_start.body[0];
  InstanceGraph graph;
  graph.quota.resize(1);
  WalkBudget budget;
  constexpr std::int64_t kLeft = 5;
  budget.step(notify.loc, kMaxWalked - kLeft * kKept);
  TraceRecorder recorder(graph, budget, nullptr);
  recorder.start_agent({});
  const Sync sync{.kind = SyncKind::kNotify, .counter = 0, .amount = 1, .op = &notify};
  for (std::int64_t i = 0; i < kLeft; ++i) recorder.add_sync(sync);
  EXPECT_THROW(recorder.add_sync(sync), BeyondLimit);
  EXPECT_EQ(graph.quota[0], kLeft);
}

// An author who asks which accesses a program makes gets them where a table decides, too.
TEST(Reports, InstancesAreShownForOneTable) {
  ProgramBuilder p("by_table", 2);
  auto x = p.input("x", DType::kF32, {4, 4}, Space::kSymmetric);
  auto which = p.table("which", {4}, {ContractKind::kRange, 0, 1000});
  auto y = p.output("y", DType::kF32, {4, 4});
  auto ready = p.signal("ready", 1000), done = p.signal("done");
  p.on_start([&] { p.loop(1000, [&](const Index& c) { p.notify(ready[c], 1 - p.rank()); }); });
  p.role("r", Resource::sms(1), p.range(4), [&](const Tile& t) {
    p.wait(ready[p.read(which, {t.index})]);
    p.store(y.tile({t.index, 0}, 1, 4), p.load(x.on(1 - p.rank()).tile({t.index, 0}, 1, 4)));
  });
  p.on_end([&] { p.barrier(done); });
  Program program = run_pipeline(p.finish());
  std::string text = print_instances(program, extent_bounds(program));
  EXPECT_EQ(text.find("a table decides "), 0u) << text.substr(0, 200);
  EXPECT_NE(text.find("wait signal 'ready'[0] of rank 0 >= 1"), std::string::npos);
}

}  // namespace
}  // namespace stretto::reports_test
