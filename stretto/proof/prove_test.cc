#include "stretto/proof/prove.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/test_programs.h"

namespace stretto::prove_test {
namespace {

using test_programs::Edit;
using test_programs::edit;
using test_programs::exchange;
using test_programs::gather_then_store;
using test_programs::is_notify;
using test_programs::is_wait;
using test_programs::local_copy;
using test_programs::packet_exchange;

void expect_proved(const Program& program) {
  ProofResult r = prove(program);
  EXPECT_TRUE(r.proved()) << r.report;
}

void expect_rejected(const Program& program, FindingKind kind, const std::string& words = "") {
  ProofResult r = prove(program);
  ASSERT_TRUE(r.rejected()) << "accepted a broken program";
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
  EXPECT_EQ(r.report.find("rejected: "), 0u) << "the verdict comes first";
}

// Would fail if correct operators could not be launched: every protocol here is one of those that
// the operators use.
TEST(Prove, AcceptsCorrectProgramsAtEveryWorldSize) {
  for (int world = 1; world <= 8; ++world) {
    SCOPED_TRACE(world);
    expect_proved(local_copy(world));
    expect_proved(gather_then_store(world));
    expect_proved(exchange(world, {.num_slots = 2}));
    expect_proved(exchange(world, {.num_slots = 1, .ack = true}));
    expect_proved(packet_exchange(world, 2));
  }
}

TEST(Prove, AcceptsAPushWithSignalAndAckBetweenTwoRanks) {
  expect_proved(exchange(2, {.num_slots = 1, .ack = true, .all_to_all = false}));
}

// The own rank's notify counts 2, the neighbour's 1 and comes later. How far ahead the neighbour
// may run shows only after some launches, and no more than the window holds.
TEST(Prove, AcceptsACounterThatTwoRanksAddToInUnequalParts) {
  ProgramBuilder p("unequal", 2);
  auto y = p.output("y", DType::kF32, {1, 1});
  auto turn = p.signal("turn", 1);
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 1), p.zeros(DType::kF32, 1, 1));
    p.notify(turn[0], p.rank(), 2);
  });
  p.on_end([&] {
    p.wait(turn[0], 2);
    p.notify(turn[0], 1 - p.rank());
  });
  expect_proved(run_pipeline(p.finish()));
}

// The rest of the file: programs that would hang, read garbage or corrupt memory if accepted.

TEST(Prove, RejectsReuseOfOneSlotWithoutAck) {
  expect_rejected(exchange(2, {.num_slots = 1}), FindingKind::kReuse, "inbox");
}

// Each rank sends to the next only, so the news that a slot has been read travels once around the
// ring: P launches, P slots, one fewer is a race.
TEST(Prove, ARingNeedsAsManySlotsAsRanks) {
  for (int world = 2; world <= 5; ++world) {
    SCOPED_TRACE(world);
    expect_proved(exchange(world, {.num_slots = world, .all_to_all = false}));
    expect_rejected(exchange(world, {.num_slots = world - 1, .all_to_all = false}),
                    FindingKind::kReuse, "inbox");
  }
}

TEST(Prove, RejectsAFastPeersNextLaunchStandingInForASlowPeer) {
  Program shared = exchange(3, {.num_slots = 2, .per_source = false});
  EXPECT_TRUE(prove(shared).rejected());
  // Two ranks and one sender per counter: nobody can stand in.
  expect_proved(exchange(2, {.num_slots = 2, .per_source = true}));
}

TEST(Prove, RejectsMissingWaitAndNotify) {
  for (const char* signal : {"ready", "here", "done"}) {
    SCOPED_TRACE(signal);
    Program program = gather_then_store(3);
    ASSERT_TRUE(edit(program, is_wait(program, signal), Edit::kDrop));
    EXPECT_TRUE(prove(program).rejected()) << "wait dropped";
    program = gather_then_store(3);
    ASSERT_TRUE(edit(program, is_notify(program, signal), Edit::kDrop));
    expect_rejected(program, FindingKind::kQuota, signal);
  }
}

TEST(Prove, RejectsThresholdsOffByOne) {
  for (const char* signal : {"ready", "here", "done"}) {
    SCOPED_TRACE(signal);
    Program program = gather_then_store(3);
    ASSERT_TRUE(edit(program, is_wait(program, signal), Edit::kThresholdPlus));
    expect_rejected(program, FindingKind::kQuota, "a launch adds only");
    program = gather_then_store(3);
    ASSERT_TRUE(edit(program, is_wait(program, signal), Edit::kThresholdMinus));
    EXPECT_TRUE(prove(program).rejected());
  }
}

TEST(Prove, RejectsTheWrongChannel) {
  Program program = gather_then_store(3);
  ASSERT_TRUE(edit(program, is_notify(program, "here"), Edit::kOtherChannel));
  EXPECT_TRUE(prove(program).rejected());
}

TEST(Prove, AcceptsHarmlessExtraWaits) {
  Program program = gather_then_store(3);
  ASSERT_TRUE(edit(program, is_wait(program, "ready"), Edit::kDuplicate));
  expect_proved(program);
}

// The worker count of one launch, and what one launch writes.
Program writer(const std::function<void(ProgramBuilder&, const TensorRef&, const Tile&)>& body,
               std::int64_t tiles) {
  ProgramBuilder p("writer", 1);
  auto out = p.output("out", DType::kF32, {8, 4});
  p.role("write", Resource::sms(2), p.range(tiles), [&](const Tile& t) { body(p, out, t); });
  return run_pipeline(p.finish());
}

TEST(Prove, OutputsAreWrittenExactlyOnce) {
  auto rows = [](std::int64_t distance) {
    return [distance](ProgramBuilder& p, const TensorRef& out, const Tile& t) {
      p.store(out.tile({t.index * distance, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    };
  };
  expect_proved(writer(rows(4), 2));
  expect_rejected(writer(rows(4), 1), FindingKind::kOutput, "[4:8, 0:4]");
  expect_rejected(writer(rows(3), 3), FindingKind::kOutput, "[3:4, 0:4]");
  auto twice = [](ProgramBuilder& p, const TensorRef& out, const Tile& t) {
    p.loop(2, [&](const Index&) {
      p.store(out.tile({t.index * 4, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    });
  };
  expect_rejected(writer(twice, 2), FindingKind::kOutput, "written twice");
}

Program write_and_read_back(bool fence, std::int64_t read_rows) {
  ProgramBuilder p("read_back", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {8, 4});
  auto out = p.output("out", DType::kF32, {8, 4});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(scratch.tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    if (fence) p.worker_fence();
    p.store(out.tile({0, 0}, 8, 4), p.load(scratch.tile({0, 0}, 8, 4).until_row(read_rows)));
  });
  return run_pipeline(p.finish());
}

TEST(Prove, AWorkerThatReadsItsOwnWritesNeedsAFence) {
  expect_proved(write_and_read_back(true, 4));
  expect_rejected(write_and_read_back(false, 4), FindingKind::kRace, "worker_fence");
}

TEST(Prove, RejectsReadsOfWhatNobodyWrote) {
  expect_rejected(write_and_read_back(true, 5), FindingKind::kUncovered, "[4:5, 0:4]");
}

// Without this, buffer contents of an earlier launch could be taken for this launch's.
TEST(Prove, BuffersDoNotSurviveALaunch) {
  ProgramBuilder p("stale", 1);
  auto scratch = p.buffer("scratch", DType::kF32, {4, 4});
  auto out = p.output("out", DType::kF32, {4, 4});
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 4, 4), p.load(scratch.tile({0, 0}, 4, 4)));
    p.store(scratch.tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
  });
  expect_rejected(run_pipeline(p.finish()), FindingKind::kUncovered, "scratch");
}

TEST(Prove, RejectsACycleOfWaitsAndNamesIt) {
  ProgramBuilder p("cycle", 2);
  auto ping = p.signal("ping", 1);
  p.role("both", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(ping[0]);
    p.notify(ping[0], (p.rank() + 1) % 2);
  });
  expect_rejected(run_pipeline(p.finish()), FindingKind::kProgress, "a cycle of waits");
}

// One worker takes its tiles in order, so a wait for a later tile of the same worker never ends;
// with a second worker it does.
TEST(Prove, ProgressDependsOnTheNumberOfWorkers) {
  auto chain = [](int workers) {
    ProgramBuilder p("chain", 1);
    auto done = p.signal("done", 1);
    p.role("work", Resource::sms(workers), p.range(2), [&](const Tile& t) {
      p.when(
          t.index == 0, [&] { p.wait(done[0]); }, [&] { p.notify(done[0], 0); });
    });
    return run_pipeline(p.finish());
  };
  expect_proved(chain(2));
  expect_rejected(chain(1), FindingKind::kProgress);
}

TEST(Prove, RejectsMismatchedSignals) {
  Program program = gather_then_store(2);
  int here = program.find_signal("here"), ready = program.find_signal("ready");
  ASSERT_NE(here, ready);
  for (Agent& agent : program.roles[0].agents) {
    for (Op& op : agent.body) {
      if (op.code == OpCode::kNotify && op.symbol == here) op.symbol = program.find_signal("done");
    }
  }
  EXPECT_TRUE(prove(program).rejected());
}

TEST(Prove, RejectsABroadcastWhoseRootWaitsForNobody) {
  auto broadcast = [](bool root_waits) {
    ProgramBuilder p("broadcast", 3);
    auto in = p.input("in", DType::kF32, {4, 4}, Space::kSymmetric);
    auto out = p.output("out", DType::kF32, {4, 4});
    auto ready = p.signal("ready"), done = p.signal("done");
    p.on_start([&] { p.when(p.rank() == 0, [&] { p.notify_all(ready); }); });
    p.role("pull", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.wait(ready, 0);
      p.store(out.tile({0, 0}, 4, 4), p.load(in.on(0).tile({0, 0}, 4, 4)));
      p.notify(done, 0);
    });
    if (root_waits) p.on_end([&] { p.when(p.rank() == 0, [&] { p.wait_all(done); }); });
    return run_pipeline(p.finish());
  };
  expect_proved(broadcast(true));
  expect_rejected(broadcast(false), FindingKind::kReuse, "has ended");
}

// Rows that change ranks; a launch without any waits for its neighbour only where `wait_always`.
Program ragged(bool wait_always) {
  ProgramBuilder p("ragged", 2);
  Index m = p.extent("m", 4);
  auto in = p.input("in", DType::kF32, {m, 4});
  auto inbox = p.buffer("inbox", DType::kF32, {m, 4}, {.space = Space::kSymmetric, .num_slots = 2});
  auto out = p.output("out", DType::kF32, {m, 4});
  auto sent = p.signal("sent", 1);
  p.role("push", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(inbox.on(1 - p.rank()).tile({0, 0}, 4, 4), p.load(in.tile({0, 0}, 4, 4)));
    p.notify(sent[0], 1 - p.rank());
  });
  p.role("take", Resource::sms(1), p.range(1), [&](const Tile&) {
    auto take = [&] {
      p.wait(sent[0]);
      p.store(out.tile({0, 0}, 4, 4), p.load(inbox.tile({0, 0}, 4, 4)));
    };
    if (wait_always) {
      take();
    } else {
      p.when(m > 0, take);
    }
  });
  return run_pipeline(p.finish());
}

// A launch with m = 0 that skips its waits would let a rank run ahead of a reader of the slot.
TEST(Prove, RejectsRunAheadThroughLaunchesOfAnotherSize) {
  expect_proved(ragged(true));
  expect_rejected(ragged(false), FindingKind::kReuse, "with m = 4 in launch 0, m = 0 in launch 1");
}

TEST(Prove, RejectsQuotasThatDependOnTheSize) {
  ProgramBuilder p("quota", 1);
  Index m = p.extent("m", 16);
  auto out = p.output("out", DType::kF32, {m, 4});
  auto done = p.signal("done", 1);
  p.role("work", Resource::sms(2), p.grid(out, 4, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.notify(done[0], 0);
  });
  expect_rejected(run_pipeline(p.finish()), FindingKind::kQuota, "every launch must add the same");
}

TEST(Prove, RejectsMoreWorkersThanTheDeviceHolds) {
  Program program = local_copy(1);
  program.roles[0].resource.num_workers = 133;
  expect_rejected(program, FindingKind::kResources, "133 workers");
  Program clusters = program;
  clusters.roles[0].resource = Resource::sms(67).clustered(2);
  expect_rejected(clusters, FindingKind::kResources, "134 blocks");
  ProofOptions large;
  large.max_workers_per_rank = 133;
  EXPECT_TRUE(prove(program, large).proved());
}

TEST(Prove, ARoleBesideAnotherTakesNoWorkerFromIt) {
  Program program = local_copy(1);
  Role beside{.name = "beside",
              .resource = Resource::sms(program.roles[0].resource.num_workers).beside_role(0)};
  beside.tile_var = program.roles[0].tile_var;
  beside.num_tiles = 0;
  beside.agents.push_back({.name = "body"});
  program.roles.push_back(beside);
  ProofOptions exact;
  exact.max_workers_per_rank = program.roles[0].resource.num_workers;
  EXPECT_TRUE(prove(program, exact).proved());
  program.roles[1].resource.beside = -1;
  EXPECT_TRUE(prove(program, exact).rejected());
}

TEST(Prove, PacketsNeedTwoSlotsAndEveryPacketAStore) {
  expect_rejected(packet_exchange(3, 1), FindingKind::kReuse, "inbox");
  Program program = packet_exchange(2, 2);
  program.roles[0].num_tiles = 1;  // nobody sends to itself
  expect_rejected(program, FindingKind::kProgress, "packets");
}

// Both carry the launch's number: who waits for the packet may get the first or the second.
TEST(Prove, APacketIsStoredOnceALaunch) {
  for (int other_row : {0, 4}) {
    ProgramBuilder p("twice", 1);
    auto box = p.buffer("box", DType::kF32, {8, 4},
                        {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
    auto out = p.output("out", DType::kF32, {4, 4});
    p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
      for (int row : {0, other_row}) {
        p.store_packet(box.tile({row, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
      }
    });
    p.role("take", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.store(out.tile({0, 0}, 4, 4), p.load_packet(box.tile({0, 0}, 4, 4)));
    });
    Program program = run_pipeline(p.finish());
    other_row == 0 ? expect_rejected(program, FindingKind::kOutput, "written twice")
                   : expect_proved(program);
  }
}

// As everywhere else (ir/program.h): neither less than nothing nor the launch before.
TEST(Prove, ThresholdsBelowZeroAreZero) {
  ProgramBuilder p("below_zero", 1);
  auto y = p.output("y", DType::kF32, {4, 4});
  auto turn = p.signal("turn", 1);
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile& t) {
    p.wait(turn[0], t.index - 3);
    p.store(y.tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.notify(turn[0], p.rank());
  });
  Program program = run_pipeline(p.finish());
  expect_proved(program);
  for (const AgentTrace& agent : expand(program, {}).agents) {
    for (const Sync& s : agent.syncs) EXPECT_GE(s.amount, 0);
  }
}

// A packet carries itself and nothing else: data stored before it may arrive after it.
TEST(Prove, APacketIsNoFlagForOtherData) {
  ProgramBuilder p("flag", 2);
  auto data = p.buffer("data", DType::kF32, {4, 4}, {.space = Space::kSymmetric});
  auto flag = p.buffer("flag", DType::kF32, {1, 1},
                       {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto out = p.output("out", DType::kF32, {4, 4});
  p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(data.on(1 - p.rank()).tile({0, 0}, 4, 4), p.zeros(DType::kF32, 4, 4));
    p.store_packet(flag.on(1 - p.rank()).tile({0, 0}, 1, 1), p.zeros(DType::kF32, 1, 1));
  });
  p.role("take", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value seen = p.load_packet(flag.tile({0, 0}, 1, 1));
    p.store(out.tile({0, 0}, 4, 4), p.load(data.tile({0, 0}, 4, 4)) + seen);
  });
  EXPECT_TRUE(prove(run_pipeline(p.finish())).rejected());
}

// A producer and a consumer agent of one worker, joined by a pipe: what pipelining lowers to.
Program piped(int num_slots) {
  ProgramBuilder p("piped", 1);
  auto in = p.input("in", DType::kF32, {16, 4});
  auto out = p.output("out", DType::kF32, {16, 4});
  p.role("copy", Resource::sms(2), p.range(4), [&](const Tile& t) {
    p.store(out.tile({t.index * 4, 0}, 4, 4), p.load(in.tile({t.index * 4, 0}, 4, 4)));
  });
  Program program = run_pipeline(p.finish());
  Role& role = program.roles[0];
  Block& body = role.agents[0].body;
  auto load =
      std::find_if(body.begin(), body.end(), [](const Op& op) { return op.code == OpCode::kLoad; });
  Op put = *load, release;
  put.code = OpCode::kPipePut;
  put.result = -1;
  put.symbol = 0;
  load->code = OpCode::kPipeGet;
  load->region.reset();
  load->symbol = 0;
  release.code = OpCode::kPipeRelease;
  release.symbol = 0;
  body.push_back(release);
  Agent producer{.name = "producer", .kind = AgentKind::kProducer};
  producer.body = {put};
  role.agents.push_back(producer);
  role.pipes.push_back({.name = "tiles",
                        .type = {DType::kF32, 4, 4},
                        .num_slots = num_slots,
                        .producer = 1,
                        .consumer = 0});
  return program;
}

TEST(Prove, PipesBalanceAndKeepTheirSlots) {
  expect_proved(piped(1));
  expect_proved(piped(3));
  Program no_release = piped(2);
  no_release.roles[0].agents[0].body.pop_back();
  expect_rejected(no_release, FindingKind::kIllFormed, "releases");
  Program early = piped(2);
  Block& body = early.roles[0].agents[0].body;
  std::rotate(body.begin(), body.end() - 1, body.end());
  expect_rejected(early, FindingKind::kIllFormed, "not got");
}

// A pipe hands over a tile; it does not make the producer's own global writes visible.
TEST(Prove, APipeIsNoFlagForGlobalMemory) {
  Program program = piped(1);
  program.tensors[0].kind = TensorKind::kBuffer;
  Op store;
  store.code = OpCode::kStore;
  store.region = program.roles[0].agents[1].body[0].region;
  store.operands = {0};
  Block& producer = program.roles[0].agents[1].body;
  producer.insert(producer.begin(), store);
  expect_rejected(program, FindingKind::kRace, "worker_fence");
}

// Would fail if a verdict were that of whichever size was looked at first.
TEST(Prove, ThreadsDoNotChangeTheVerdict) {
  for (const Program& program : {ragged(true), ragged(false)}) {
    ProofResult alone = prove(program, {.threads = 1});
    for (int i = 0; i < 5; ++i) {
      ProofResult together = prove(program, {.threads = 4});
      ASSERT_EQ(together.findings.size(), alone.findings.size()) << together.report;
      for (std::size_t f = 0; f < alone.findings.size(); ++f) {
        EXPECT_EQ(together.findings[f].text, alone.findings[f].text);
      }
      EXPECT_EQ(together.stats.cases, alone.stats.cases);
      EXPECT_EQ(together.stats.clocks, alone.stats.clocks);
    }
  }
}

TEST(Prove, AFailedProofNamesBothAccesses) {
  Program program = gather_then_store(2);
  ASSERT_TRUE(edit(program, is_wait(program, "here"), Edit::kDrop));
  std::string report = prove(program).report;
  for (const char* word :
       {"role 'gather'", "role 'store'", "'full'", "rank 0", "tile ", "test_programs_test.cc:"}) {
    EXPECT_NE(report.find(word), std::string::npos) << word << " is missing from\n" << report;
  }
}

}  // namespace
}  // namespace stretto::prove_test
