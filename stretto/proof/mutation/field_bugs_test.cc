// Bugs that communication kernels really had, written as programs. Each must be rejected, with a
// report that names the two accesses or the wait, or a user ships it again.
#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

bool has_kind(const ProofResult& result, FindingKind kind) {
  return std::any_of(result.findings.begin(), result.findings.end(),
                     [&](const Finding& f) { return f.kind == kind; });
}

// Rejected as `kind`, by a report that has all of `words` in it.
void expect_rejected(Program program, FindingKind kind, const std::vector<std::string>& words) {
  ProofResult result = prove(run_pipeline(std::move(program)));
  EXPECT_TRUE(result.rejected());
  EXPECT_TRUE(has_kind(result, kind)) << "not as " << name(kind) << "\n" << result.report;
  for (const std::string& word : words) {
    EXPECT_NE(result.report.find(word), std::string::npos) << word << " not in\n" << result.report;
  }
}

std::string line(int number) { return "field_bugs_test.cc:" + std::to_string(number) + ":"; }

constexpr int kWorld = 3, kRows = 4, kCols = 6;

// Every rank sends its rows to all others, who add them up: the frame of several bugs. Correct as
// it stands.
struct Exchange {
  bool credit =
      true;  // wait until the reader has started this launch, and so is done with the last
  bool notify_another_signal = false;
  int put_line = 0, load_line = 0, wait_line = 0, notify_line = 0;

  Program program() {
    ProgramBuilder p("exchange", kWorld);
    auto x = p.input("x", DType::kF32, {kRows, kCols});
    auto inbox =
        p.buffer("inbox", DType::kF32, {kWorld * kRows, kCols}, {.space = Space::kSymmetric});
    auto y = p.output("y", DType::kF32, {kRows, kCols});
    auto free = p.signal("free"), here = p.signal("here"), there = p.signal("there");
    p.on_start([&] { p.notify_all(free); });
    p.role("send", Resource::copy_engine(), p.range(kWorld), [&](const Tile& t) {
      Index peer = (p.rank() + t.index) % kWorld;
      if (credit) p.wait(free, peer);
      put_line = __LINE__ + 1;
      p.put(inbox.on(peer).tile({p.rank() * kRows, 0}, kRows, kCols), x.tile({0, 0}, kRows, kCols));
      notify_line = __LINE__ + 1;
      p.notify(notify_another_signal ? there : here, peer);
    });
    p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value sum = p.zeros(DType::kF32, kRows, kCols);
      p.loop(kWorld, [&](const Index& source) {
        wait_line = __LINE__ + 1;
        p.wait(here, source);
        load_line = __LINE__ + 1;
        sum = sum + p.load(inbox.tile({source * kRows, 0}, kRows, kCols));
      });
      p.store(y.tile({0, 0}, kRows, kCols), sum);
    });
    return p.finish();
  }
};

TEST(FieldBugs, TheFrameItselfIsCorrect) {
  ProofResult result = prove(Exchange{}.program());
  EXPECT_TRUE(result.proved()) << result.report;
}

// The sender of the next launch overwrites what a slow reader of this one has not read yet.
TEST(FieldBugs, EarlyBufferReuseAcrossLaunches) {
  Exchange bug{.credit = false};
  Program program = bug.program();
  expect_rejected(program, FindingKind::kReuse,
                  {"'inbox'", line(bug.put_line), line(bug.load_line), "'send'", "'sum'"});
}

TEST(FieldBugs, NotifyOnOneSignalWaitOnAnother) {
  Exchange bug{.notify_another_signal = true};
  Program program = bug.program();
  expect_rejected(program, FindingKind::kQuota, {"'here'", line(bug.wait_line), "'sum'"});
}

// The notifier counts per source, the waiter reads the counter as one count of all.
TEST(FieldBugs, PerSourceNotifyWaitedForAsOneCount) {
  ProgramBuilder p("mismatched", kWorld);
  auto x = p.input("x", DType::kF32, {1, kCols});
  auto inbox =
      p.buffer("inbox", DType::kF32, {kWorld, kCols}, {.space = Space::kSymmetric, .num_slots = 2});
  auto y = p.output("y", DType::kF32, {1, kCols});
  auto here = p.signal("here");
  int wait_line = 0;
  p.role("send", Resource::copy_engine(), p.range(kWorld), [&](const Tile& t) {
    p.put(inbox.on(t.index).tile({p.rank(), 0}, 1, kCols), x.tile({0, 0}, 1, kCols));
    p.notify(here, t.index);
  });
  p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 1, kCols);
    wait_line = __LINE__ + 1;
    p.wait(here[0], kWorld);
    p.loop(kWorld, [&](const Index& s) { sum = sum + p.load(inbox.tile({s, 0}, 1, kCols)); });
    p.store(y.tile({0, 0}, 1, kCols), sum);
  });
  expect_rejected(p.finish(), FindingKind::kQuota, {"'here'[0]", line(wait_line)});
}

Program pull_broadcast(bool root_waits, int& copy_line) {
  ProgramBuilder p("broadcast", kWorld);
  auto in = p.input("in", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto out = p.output("out", DType::kF32, {kRows, kCols});
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.when(p.rank() == 0, [&] { p.notify_all(ready); }); });
  p.role("pull", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.wait(ready, 0);
    copy_line = __LINE__ + 1;
    p.get(out.tile({0, 0}, kRows, kCols), in.on(0).tile({0, 0}, kRows, kCols));
    p.notify(done, 0);
  });
  if (root_waits) {
    p.on_end([&] { p.when(p.rank() == 0, [&] { p.wait_all(done); }); });
  }
  return p.finish();
}

// The root returns while others still read its input, and the caller overwrites it.
TEST(FieldBugs, BroadcastWhoseRootWaitsForNobody) {
  int copy_line = 0;
  ProofResult correct = prove(pull_broadcast(true, copy_line));
  EXPECT_TRUE(correct.proved()) << correct.report;
  expect_rejected(pull_broadcast(false, copy_line), FindingKind::kReuse,
                  {"'in'", line(copy_line), "has ended", "rank 0"});
}

// The root writes outputs of ranks that have not started the launch, whose caller still reads them.
TEST(FieldBugs, PushBroadcastThatDoesNotWaitForTheReceivers) {
  ProgramBuilder p("push_broadcast", kWorld);
  auto in = p.input("in", DType::kF32, {kRows, kCols});
  auto out = p.output("out", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto here = p.signal("here");
  int put_line = 0;
  p.role("push", Resource::copy_engine(), p.range(kWorld), [&](const Tile& t) {
    p.when(p.rank() == 0, [&] {
      put_line = __LINE__ + 1;
      p.put(out.on(t.index).tile({0, 0}, kRows, kCols), in.tile({0, 0}, kRows, kCols));
      p.notify(here, t.index);
    });
  });
  p.on_end([&] { p.wait(here, 0); });
  expect_rejected(p.finish(), FindingKind::kReuse, {"'out'", line(put_line), "has started"});
}

// Two communicators on one signal slot: the first one's waits are satisfied by the other's
// arrivals.
TEST(FieldBugs, TwoCommunicatorsShareASignalSlot) {
  auto program = [](bool share) {
    ProgramBuilder p("two_communicators", 2);
    auto y = p.output("y", DType::kF32, {2, kCols});
    std::vector<SignalRef> here = {p.signal("here")};
    here.push_back(share ? here[0] : p.signal("here_too"));
    for (int c = 0; c < 2; ++c) {
      std::string suffix = std::to_string(c);
      auto x = p.input("x" + suffix, DType::kF32, {1, kCols});
      auto inbox = p.buffer("inbox" + suffix, DType::kF32, {1, kCols},
                            {.space = Space::kSymmetric, .num_slots = 2});
      p.role("send" + suffix, Resource::copy_engine(), p.range(1), [&](const Tile&) {
        p.put(inbox.on(1 - p.rank()).tile({0, 0}, 1, kCols), x.tile({0, 0}, 1, kCols));
        p.notify(here[static_cast<std::size_t>(c)], 1 - p.rank());
      });
      p.role("receive" + suffix, Resource::sms(1), p.range(1), [&](const Tile&) {
        p.wait(here[static_cast<std::size_t>(c)], 1 - p.rank());
        p.store(y.tile({c, 0}, 1, kCols), p.load(inbox.tile({0, 0}, 1, kCols)));
      });
    }
    return p.finish();
  };
  ProofResult correct = prove(program(false));
  EXPECT_TRUE(correct.proved()) << correct.report;
  expect_rejected(program(true), FindingKind::kRace,
                  {"'inbox0'", "'send0'", "'receive0'", "nothing orders them"});
}

// A ready credit for the first of two tiles only: the second overwrites a slot still being read.
TEST(FieldBugs, MissingReadyCreditOnPush) {
  ProgramBuilder p("missing_credit", 2);
  auto x = p.input("x", DType::kF32, {2, kCols});
  auto slot = p.buffer("slot", DType::kF32, {1, kCols}, {.space = Space::kSymmetric});
  auto y = p.output("y", DType::kF32, {2, kCols});
  auto free = p.signal("free"), here = p.signal("here");
  Index peer = 1 - p.rank();
  int put_line = 0, load_line = 0;
  p.on_start([&] { p.notify(free, peer); });
  p.role("send", Resource::copy_engine(), p.range(2), [&](const Tile& t) {
    p.wait(free, peer);  // at_least 1, for the second tile as well
    put_line = __LINE__ + 1;
    p.put(slot.on(peer).tile({0, 0}, 1, kCols), x.tile({t.index, 0}, 1, kCols));
    p.notify(here, peer);
  });
  p.role("receive", Resource::sms(1), p.range(2), [&](const Tile& t) {
    p.wait(here[peer], t.index + 1);
    load_line = __LINE__ + 1;
    p.store(y.tile({t.index, 0}, 1, kCols), p.load(slot.tile({0, 0}, 1, kCols)));
    p.notify(free, peer);
  });
  expect_rejected(p.finish(), FindingKind::kRace, {"'slot'", line(put_line), line(load_line)});
}

// `i < n - 1` in the loop that waits.
TEST(FieldBugs, WaitForTheLastTileMissing) {
  ProgramBuilder p("last_tile", 2);
  auto x = p.input("x", DType::kF32, {kRows, kCols});
  auto inbox =
      p.buffer("inbox", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric, .num_slots = 2});
  auto y = p.output("y", DType::kF32, {kRows, kCols});
  auto here = p.signal("here", kRows);
  Index peer = 1 - p.rank();
  p.role("send", Resource::copy_engine(), p.range(kRows), [&](const Tile& t) {
    p.put(inbox.on(peer).tile({t.index, 0}, 1, kCols), x.tile({t.index, 0}, 1, kCols));
    p.notify(here[t.index], peer);
  });
  p.role("receive", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.loop(kRows - 1, [&](const Index& i) { p.wait(here[i]); });
    p.store(y.tile({0, 0}, kRows, kCols), p.load(inbox.tile({0, 0}, kRows, kCols)));
  });
  expect_rejected(p.finish(), FindingKind::kRace, {"'inbox'", "[3:4, 0:6]", "tile 3"});
}

// A compute tile straddles two communication channels and waits for the first.
TEST(FieldBugs, StraddlingTileWaitsForItsFirstChannelOnly) {
  auto program = [](bool whole) {
    ProgramBuilder p("straddle", 2);
    auto a = p.input("a", DType::kF32, {5, kCols}, Space::kSymmetric);
    auto full = p.buffer("full", DType::kF32, {10, kCols});
    auto c = p.output("c", DType::kF32, {10, kCols});
    auto rows = p.tile_map("rows", full, {.tile_rows = 2, .channels_per_rank = 3});
    auto here = p.signal("here", rows.channels());
    auto ready = p.signal("ready"), done = p.signal("done");
    p.on_start([&] { p.notify_all(ready); });
    p.role("gather", Resource::copy_engine(), rows.tiles(), [&](const Tile& t) {
      p.wait(ready, t.owner);
      Slice from = a.on(t.owner).tile({t.local_row, 0}, 2, kCols);
      p.get(full.tile({t.row, 0}, 2, kCols).until_row(t.row_end),
            from.until_row(t.local_row + t.row_end - t.row));
      p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
      p.notify(done, t.owner);
    });
    p.role("compute", Resource::sms(1), p.grid(c, 3, kCols), [&](const Tile& t) {
      p.consumer_tile_wait(here, rows, t.row, whole ? t.row + 3 : t.row + 1);
      p.store(c.tile({t.row, 0}, 3, kCols), p.load(full.tile({t.row, 0}, 3, kCols)));
    });
    p.on_end([&] { p.loop(2, [&](const Index& i) { p.wait(done[i], 3); }); });
    return p.finish();
  };
  ProofResult correct = prove(run_pipeline(program(true)));
  EXPECT_TRUE(correct.proved()) << correct.report;
  expect_rejected(program(false), FindingKind::kRace, {"'full'", "'gather'", "'compute'"});
}

// --- waits for an exact value ---
// A waiter that asks for equality hangs when the counter is past its value before it looks. There
// is no way to ask: the language has one wait, "at least"; comparisons are index expressions, which
// cannot read a counter; the text form has no other word.

template <typename Builder, typename Channel>
concept WaitsForEquality = requires(Builder& p, Channel c, Index n) {
  p.wait_equal(c, n);
}
|| requires(Builder& p, Channel c, Index n) { p.wait_until(c, n); }
|| requires(Builder& p, Channel c) { p.wait(c == 1); };
static_assert(!WaitsForEquality<ProgramBuilder, ChannelRef>);

template <typename Builder, typename Channel>
concept ReadsCounters = requires(Builder& p, Channel c) {
  p.read(c);
}
|| requires(Builder& p, Channel c) { p.let("value", c); };
static_assert(!ReadsCounters<ProgramBuilder, ChannelRef>);

template <typename Builder, typename Channel>
concept SetsCounters = requires(Builder& p, Channel c, Index r) {
  p.signal_set(c, r, 1);
}
|| requires(Builder& p, Channel c) { p.reset(c); };
static_assert(!SetsCounters<ProgramBuilder, ChannelRef>);

// Both arrivals may be there before the first is waited for.
Program overtaken() {
  ProgramBuilder p("overtaken", 2);
  auto here = p.signal("here");
  Index peer = 1 - p.rank();
  p.role("send", Resource::copy_engine(), p.range(2), [&](const Tile&) { p.notify(here, peer); });
  p.role("receive", Resource::sms(1), p.range(2),
         [&](const Tile& t) { p.wait(here[peer], t.index + 1); });
  return p.finish();
}

TEST(FieldBugs, AnOvertakenWaitStillEnds) {
  Program program = run_pipeline(overtaken());
  ProofResult result = prove(program);
  EXPECT_TRUE(result.proved()) << result.report;
  auto shared = std::make_shared<const Program>(program);
  ControlledOptions options{.launches = 3, .compute = false};
  // All of send goes first, so every wait of receive finds the counter past its value.
  options.choose = [&](std::span<const ScheduleChoice> choices) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].role != 1) return i;
    }
    return std::size_t{0};
  };
  ControlledResult run = run_controlled(shared, count_quotas(program, {}), options);
  EXPECT_TRUE(run.ok()) << run.report;
}

TEST(FieldBugs, EqualityHasNoTextForm) {
  std::string text = print(overtaken());
  std::size_t wait = text.find("] >= ");
  ASSERT_NE(wait, std::string::npos) << text;
  EXPECT_NO_THROW(parse(text, "unedited"));
  for (const char* word : {"==", "=", "!=", "<=", ">"}) {
    std::string edited = text;
    edited.replace(wait + 2, 2, word);
    EXPECT_THROW(parse(edited, "edited"), UserError) << word;
  }
}

}  // namespace
}  // namespace stretto
