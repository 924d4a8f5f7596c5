// Readers that are looked at together: each of them has to come after the last write of everybody,
// for every table, or garbage is read.
#include "stretto/proof/write_frontier.h"

#include <gtest/gtest.h>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::write_frontier_test {
namespace {

constexpr int kReaders = 4, kWriters = 3;

ProofResult verdict(ProgramBuilder& p) { return prove(run_pipeline(p.finish())); }

void expect_race(const ProofResult& result) {
  ASSERT_TRUE(result.rejected()) << "a write may still be under way";
  EXPECT_EQ(result.findings[0].kind, FindingKind::kRace) << result.report;
}

// A writer of two blocks says that it is done after the first, or after the second.
ProofResult says_done(bool early) {
  ProgramBuilder p("says_done", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {8, 4});
  auto out = p.output("out", DType::kF32, {8 * kReaders, 4});
  auto done = p.signal("done");
  auto write = [&](std::int64_t row) {
    p.store(scratch.tile({row, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
  };
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    write(0);
    if (early) p.notify(done[0], 0);
    write(4);
    if (!early) p.notify(done[0], 0);
  });
  p.role("read", Resource::sms(kReaders), p.range(kReaders), [&](const Tile& t) {
    p.wait(done[0], 1);
    p.store(out.tile({t.index * 8, 0}, 8, 4), p.load(scratch.tile({0, 0}, 8, 4)));
  });
  return verdict(p);
}

TEST(WriteFrontier, AgentsAreOverWithTheirLastWrite) {
  EXPECT_TRUE(says_done(false).proved());
  expect_race(says_done(true));
}

// Every reader waits for writers [0, waited_for).
ProofResult waits_for(int waited_for) {
  ProgramBuilder p("waits_for", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {4 * kWriters, 4});
  auto out = p.output("out", DType::kF32, {4 * kWriters * kReaders, 4});
  auto done = p.signal("done", kWriters);
  p.role("write", Resource::sms(kWriters), p.range(kWriters), [&](const Tile& t) {
    p.store(scratch.tile({t.index * 4, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.notify(done[t.index], 0);
  });
  p.role("read", Resource::sms(kReaders), p.range(kReaders), [&](const Tile& t) {
    p.loop(waited_for, [&](const Index& i) { p.wait(done[i], 1); });
    p.store(out.tile({t.index * 4 * kWriters, 0}, 4 * kWriters, 4),
            p.load(scratch.tile({0, 0}, 4 * kWriters, 4)));
  });
  return verdict(p);
}

TEST(WriteFrontier, EveryWriterCounts) {
  EXPECT_TRUE(waits_for(kWriters).proved());
  for (int few = 0; few < kWriters; ++few) expect_race(waits_for(few));
}

// Workers that all write a part and read the whole, the last of them without waiting.
ProofResult all_read(bool hasty) {
  ProgramBuilder p("all_read", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {4 * kReaders, 4});
  auto out = p.output("out", DType::kF32, {4 * kReaders * kReaders, 4});
  auto done = p.signal("done", 1);
  p.role("work", Resource::sms(kReaders), p.range(kReaders), [&](const Tile& t) {
    p.store(scratch.tile({t.index * 4, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.notify(done[0], 0);
    p.when(t.index < kReaders - (hasty ? 1 : 0), [&] { p.wait(done[0], kReaders); });
    p.store(out.tile({t.index * 4 * kReaders, 0}, 4 * kReaders, 4),
            p.load(scratch.tile({0, 0}, 4 * kReaders, 4)));
  });
  return verdict(p);
}

TEST(WriteFrontier, ReadersThatAreAlikeSpeakForThemselvesAlone) {
  EXPECT_TRUE(all_read(false).proved());
  expect_race(all_read(true));
}

// A worker that tells itself that it has written, and then writes on where it is late.
ProofResult reads_its_own(bool late) {
  ProgramBuilder p("reads_its_own", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {8, 4});
  auto out = p.output("out", DType::kF32, {8 * kReaders, 4});
  auto done = p.signal("done", 1);
  auto write = [&](std::int64_t row) {
    p.store(scratch.tile({row, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
  };
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    write(0);
    if (!late) write(4);
    p.notify(done[0], 0);
    p.wait(done[0], 1);
    if (late) write(4);
    p.loop(kReaders, [&](const Index& i) {
      p.store(out.tile({i * 8, 0}, 8, 4), p.load(scratch.tile({0, 0}, 8, 4)));
    });
  });
  return verdict(p);
}

TEST(WriteFrontier, OwnWritesAreOverByANotifyBehindThem) {
  EXPECT_TRUE(reads_its_own(false).proved());
  expect_race(reads_its_own(true));
}

// Rows go where a table says, which may be the same row twice.
TEST(WriteFrontier, WritesByTableCoverNothing) {
  for (bool by_table : {false, true}) {
    ProgramBuilder p("by_table", 1);
    auto where = p.table("where", {kWriters}, {ContractKind::kRange, 0, kWriters});
    auto scratch = p.buffer("scratch", DType::kF32, {kWriters, 4});
    auto out = p.output("out", DType::kF32, {kWriters * kReaders, 4});
    auto done = p.signal("done", 1);
    p.role("write", Resource::sms(1), p.range(kWriters), [&](const Tile& t) {
      Index row = by_table ? p.read(where, {t.index}) : t.index;
      p.store(scratch.tile({row, 0}, 1, 4), p.zeros(DType::kF32, 1, 4));
      p.notify(done[0], 0);
    });
    p.role("read", Resource::sms(kReaders), p.range(kReaders), [&](const Tile& t) {
      p.wait(done[0], kWriters);
      p.store(out.tile({t.index * kWriters, 0}, kWriters, 4),
              p.load(scratch.tile({0, 0}, kWriters, 4)));
    });
    ProofResult result = verdict(p);
    ASSERT_EQ(result.proved(), !by_table) << result.report;
    if (!by_table) continue;
    EXPECT_EQ(result.findings[0].kind, FindingKind::kUncovered) << result.report;
  }
}

// Copy queues need notifies of system scope, the SMs beside them do not: what one of them learns is
// not what the other does.
TEST(WriteFrontier, AQueueDoesNotLearnWhatAnSmDoes) {
  ProgramBuilder p("queue", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {4 * kWriters, 4});
  auto out = p.output("out", DType::kF32, {4 * kWriters, 4});
  auto copied = p.output("copied", DType::kF32, {4 * kWriters, 4});
  auto done = p.signal("done", 1);
  auto all = [](const TensorRef& t) { return t.tile({0, 0}, 4 * kWriters, 4); };
  p.role("write", Resource::sms(kWriters), p.range(kWriters), [&](const Tile& t) {
    p.store(scratch.tile({t.index * 4, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.notify(done[0], 0);
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(done[0], kWriters);
    p.store(all(out), p.load(all(scratch)));
  });
  p.role("copy", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.wait(done[0], kWriters);
    p.copy(all(copied), all(scratch));
  });
  Program program = run_pipeline(p.finish());
  EXPECT_TRUE(prove(program).proved());
  SyncTable within_device = sync_table();
  for (SyncStep& s : within_device[SyncRow::kNotify]) s.scope = std::min(s.scope, Scope::kGpu);
  ProofResult result = prove(program, {.table = &within_device});
  expect_race(result);
  EXPECT_NE(result.report.find("role 'copy'"), std::string::npos) << result.report;
}

}  // namespace
}  // namespace stretto::write_frontier_test
