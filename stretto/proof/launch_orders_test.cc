// Launches of different sizes after each other. Each program here is right for every size by
// itself, and wrong in a sequence that a proof of sizes in turn does not see.
#include "stretto/proof/launch_orders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "stretto/base/test_seed.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/proof/prove.h"

namespace stretto::launch_orders_test {
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

// Of the sizes that launches may have beside the bounds, sequences are looked at as of all sizes.
TEST(LaunchOrders, SizesBesideTheBoundsFollowEachOther) {
  for (int slots : {1, 2, 3}) {
    Program wrong = credit_by_size(slots, false);
    EXPECT_TRUE(prove(wrong, {.bounds_only = true}).proved());
    EXPECT_TRUE(prove(wrong, {.bounds_only = true, .also_at = {{0}}}).rejected()) << slots;
    ProofResult right = prove(credit_by_size(slots, true), {.bounds_only = true, .also_at = {{0}}});
    EXPECT_EQ(right.verdict, Verdict::kProvedAtFixedSizes) << right.report;
  }
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
  Program program = p.finish();
  ProofResult r = prove(program, {.promises = false});
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_EQ(r.stats.cases, 3 + 27 - 3) << "each size, and three launches of three kinds";
  r = prove(program);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_EQ(r.stats.cases, 3) << "each size";
}

// Each rank puts a row into the others' slots, by conditions of the size drawn by lot: whether it
// waits for them to begin, for its own reader or for theirs, whether it puts, and who reads.
class RandomLaunches {
 public:
  explicit RandomLaunches(std::uint64_t seed) : random_(seed) {}

  Program program() {
    int world = below(2) + 2, sizes = below(2) + 3;
    ProgramBuilder p("launches", world);
    Index m = p.extent("m", sizes - 1);
    auto in = p.input("in", DType::kF32, {1, 8});
    auto inbox = p.buffer("inbox", DType::kF32, {world, 8},
                          {.space = Space::kSymmetric, .num_slots = below(3) + 1});
    auto out = p.output("out", DType::kF32, {world, 8});
    auto ready = p.signal("ready"), sent = p.signal("sent"), read = p.signal("read");
    auto often = [&] { return at_sizes(m, sizes, 70); };
    Index waits = often(), puts = often(), reads = often(), asks = often(), quick = often();
    auto others = [&](const std::function<void(const Index&)>& each) {
      p.loop(world - 1, [&](const Index& i) { each((p.rank() + i + 1) % world); });
    };
    p.on_start([&] { others([&](const Index& to) { p.notify(ready[p.rank()], to); }); });
    p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
      others([&](const Index& to) {
        p.when(waits, [&] { p.wait(ready, to); });
        p.when(puts, [&] {
          p.store(inbox.on(to).tile({p.rank(), 0}, 1, 8), p.load(in.tile({0, 0}, 1, 8)));
        });
        p.notify(sent[p.rank()], to);
        p.when(asks, [&] { p.wait(read, to); });
      });
    });
    p.role("recv", Resource::sms(1), p.range(world), [&](const Tile& t) {
      Index other = t.index != p.rank();
      p.when(other && reads && puts, [&] { p.wait(sent, t.index); });
      p.when(other && quick, [&] { p.notify(read[p.rank()], t.index); });
      auto copy = [&](const TensorRef& from, const Index& row) {
        p.store(out.tile({t.index, 0}, 1, 8), p.load(from.tile({row, 0}, 1, 8)));
      };
      p.when(
          other && reads && puts, [&] { copy(inbox, t.index); }, [&] { copy(in, 0); });
      p.when(other && quick == 0, [&] { p.notify(read[p.rank()], t.index); });
    });
    return p.finish();
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  Index at_sizes(const Index& m, int sizes, int percent) {
    Index some = below(100) < percent ? 1 : 0;
    for (int i = 0; i < sizes; ++i) {
      if (below(4) == 0) some = select(m == i, 1 - some, some);
    }
    return some;
  }

  std::mt19937_64 random_;
};

// What is concluded from promises is what every sequence of launches shows that is laid out.
TEST(LaunchOrders, PromisesHoldInEverySequence) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  int by_promises = 0, right = 0, wrong = 0;
  for (int i = 0; i < 150; ++i) {
    std::uint64_t lot = random();
    Program program = RandomLaunches(lot).program();
    SCOPED_TRACE(fmt::format("program {}\n{}", lot, print(program)));
    ProofResult laid_out = prove(program, {.promises = false, .max_findings = 1});
    ProofResult promised = prove(program, {.max_findings = 1});
    EXPECT_NE(laid_out.verdict, Verdict::kNotComplete) << laid_out.report;
    EXPECT_EQ(promised.verdict, laid_out.verdict) << laid_out.report;
    ++(laid_out.proved() ? right : wrong);
    by_promises += promised.stats.cases < laid_out.stats.cases ? 1 : 0;
  }
  fmt::print("{} right, {} of them by promises, {} wrong\n", right, by_promises, wrong);
  EXPECT_GE(wrong, 15);
  EXPECT_GE(by_promises, 10);
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
}  // namespace stretto::launch_orders_test
