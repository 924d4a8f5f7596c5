// Launches of different sizes after each other. Each program here is right for every size by
// itself, and wrong in a sequence that a proof of sizes in turn does not see.
#include "stretto/proof/launch_orders.h"

#include <gtest/gtest.h>

#include <string>

#include "stretto/lang/program_builder.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

void expect_proved(const Program& program) {
  ProofResult r = prove(program);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_TRUE(r.stats.every_order);
}

void expect_rejected(const Program& program, FindingKind kind, const std::string& words) {
  ProofResult r = prove(program);
  ASSERT_TRUE(r.rejected()) << "accepted a broken program";
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
}

// Rank r puts a row into its neighbour's inbox and waits for its leave only where m > 0, if it may
// go without: with m = 1, 0, 0 the third launch meets a reader of the first.
Program credit_by_size(int slots, bool always_waits) {
  ProgramBuilder p("credit", 2);
  Index m = p.extent("m", 1);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto inbox =
      p.buffer("inbox", DType::kF32, {1, 8}, {.space = Space::kSymmetric, .num_slots = slots});
  auto out = p.output("out", DType::kF32, {m, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    if (always_waits) {
      p.wait(ready, peer);
    } else {
      p.when(m > 0, [&] { p.wait(ready, peer); });
    }
    p.put_signal(inbox.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8), sent[p.rank()], peer);
  });
  p.role("recv", Resource::sms(1), p.range(m), [&](const Tile& t) {
    p.wait(sent, peer);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(inbox.tile({0, 0}, 1, 8)));
  });
  return p.finish();
}

// With two sizes in turn an even number of slots keeps each to its own slots.
TEST(LaunchOrders, SizesThatMeetInASlotAfterOthers) {
  for (int slots : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(slots);
    expect_proved(credit_by_size(slots, true));
    expect_rejected(credit_by_size(slots, false), FindingKind::kReuse, "m = 1 in launch 0, m = 0");
  }
}

// Rank 0 waits for two notifies. With m = 1 they are its own writer's; with m = 0 rank 1 sends one
// of them, for which it waits for nobody: by its next two launches it makes up for the writer.
Program stands_in(bool waits) {
  ProgramBuilder p("stands_in", 2);
  Index m = p.extent("m", 1);
  auto x = p.input("x", DType::kF32, {1, 8});
  auto buf = p.buffer("buf", DType::kF32, {1, 8});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto ready = p.signal("ready", 1), c = p.signal("c", 1);
  p.on_start([&] { p.when(p.rank() == 0, [&] { p.notify(ready[0], 1); }); });
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    auto write = [&] {
      p.store(buf.tile({0, 0}, 1, 8), p.load(x.tile({0, 0}, 1, 8)));
      p.notify(c[0], 0, 1 + m);
    };
    p.when(p.rank() == 0, write, [&] {
      if (waits) p.wait(ready[0]);
      p.when(
          m == 1, [&] { p.wait(ready[0]); }, [&] { p.notify(c[0], 0, 1); });
    });
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    auto copy = [&](const TensorRef& from) {
      p.store(out.tile({0, 0}, 1, 8), p.load(from.tile({0, 0}, 1, 8)));
    };
    auto read = [&] {
      p.wait(c[0], 2);
      copy(buf);
    };
    p.when(p.rank() == 0 && m == 1, read, [&] { copy(x); });
  });
  return p.finish();
}

TEST(LaunchOrders, ARankThatRunsAheadThroughLaunchesOfAnotherSize) {
  expect_proved(stands_in(true));
  expect_rejected(stands_in(false), FindingKind::kRace, "m = 1 in launch 0, m = 0 in launches 1");
}

struct Rows {
  TensorRef in, inbox, out;
};
// Copies what `peer` has sent where it has sent anything, else its own row.
void receive(ProgramBuilder& p, const Index& comes, const SignalRef& sent, const Index& peer,
             const Rows& rows) {
  p.role("recv", Resource::sms(1), p.range(1), [&](const Tile&) {
    auto copy = [&](const TensorRef& from) {
      p.store(rows.out.tile({0, 0}, 1, 8), p.load(from.tile({0, 0}, 1, 8)));
    };
    auto take = [&] {
      p.wait(sent, peer);
      copy(rows.inbox);
    };
    p.when(comes, take, [&] { copy(rows.in); });
  });
}

// Only launches with m = 4 wait before they write and read what they got; those with m = 2 write
// too, if they may. Neither is the largest size, nor are they neighbours.
Program pair_of_sizes(bool writes) {
  ProgramBuilder p("pair", 2);
  Index m = p.extent("m", 6);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto inbox = p.buffer("inbox", DType::kF32, {1, 8}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.when(m == 4, [&] { p.wait(ready, peer); });
    p.when(writes ? m == 4 || m == 2 : m == 4, [&] {
      p.put(inbox.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8));
    });
    p.notify(sent[p.rank()], peer);
  });
  receive(p, m == 4, sent, peer, {in, inbox, out});
  return p.finish();
}

TEST(LaunchOrders, EveryPairOfSizes) {
  expect_proved(pair_of_sizes(false));
  expect_rejected(pair_of_sizes(true), FindingKind::kReuse, "m = 4 in launch 0, m = 2 in launch 1");
}

// Launches with m = 1 wait for nobody, which is right as they write nothing.
TEST(LaunchOrders, ThreeKindsAreLookedAtTogetherWhereSignalsHaveOneSender) {
  ProgramBuilder p("three", 2);
  Index m = p.extent("m", 2);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto inbox = p.buffer("inbox", DType::kF32, {1, 8}, {.space = Space::kSymmetric, .num_slots = 2});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.when(m != 1, [&] { p.wait(ready, peer); });  // skipped between the two others
    p.when(m == 0, [&] { p.put(inbox.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8)); });
    p.notify(sent[p.rank()], peer);
  });
  receive(p, m == 0, sent, peer, {in, inbox, out});
  ProofResult r = prove(p.finish());
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_EQ(r.stats.cases, 3 + 27 - 3) << "each size, and three launches of three kinds";
}

// A buffer of so many slots that other ranks write, and one of a single slot.
Program many_slots(int slots, int count, bool all_senders) {
  ProgramBuilder p("many_slots", 2);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto one = p.buffer("one", DType::kF32, {1, 8}, {.space = Space::kSymmetric});
  auto many =
      p.buffer("many", DType::kF32, {1, 8}, {.space = Space::kSymmetric, .num_slots = slots});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto ready = p.signal("ready", 1), sent = p.signal("sent", 1);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.loop(2, [&](const Index& r) { p.notify(ready[0], r); }); });
  p.role("send", Resource::copy_engine(1), p.range(1), [&](const Tile&) {
    p.wait(ready[0], all_senders ? 2 : 1);
    p.put(one.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8));
    p.put(many.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8));
    p.loop(count, [&](const Index&) { p.notify(sent[0], peer); });
  });
  p.role("recv", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(sent[0], count);
    Value a = p.load(one.tile({0, 0}, 1, 8)), b = p.load(many.tile({0, 0}, 1, 8));
    p.store(out.tile({0, 0}, 1, 8), a + b);
  });
  return p.finish();
}

// With 5000 slots more launches lie beside each other than 12 bits would tell apart.
TEST(LaunchOrders, ManySlotsHideNothing) {
  for (int slots : {2, 64, 5000}) {
    SCOPED_TRACE(slots);
    expect_proved(many_slots(slots, 1, true));
    expect_rejected(many_slots(slots, 1, false), FindingKind::kReuse, "launch 1");
  }
}

TEST(LaunchOrders, MoreLaunchesThanCanBeLaidOutAreALimitOfTheProof) {
  ProofResult r = prove(many_slots(100'000, 1000, true));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_FALSE(r.within_limits);
  EXPECT_NE(r.report.find("buffers of 100000 slots take 300001 launches"), std::string::npos)
      << r.report;
}

}  // namespace
}  // namespace stretto
