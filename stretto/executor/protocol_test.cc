// Several ranks: signals, packets, pipes, slots over launches, and what happens when one is
// missing. A user who loses this loses results silently, or waits for ever.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;

// Every rank pulls its right neighbour's shard and adds one, with the handshake that a pull needs.
Program shift(int world, std::int64_t rows, std::int64_t cols) {
  ProgramBuilder p("shift", world);
  auto x = p.input("x", DType::kF32, {rows, cols}, Space::kSymmetric);
  auto pulled = p.buffer("pulled", DType::kF32, {rows, cols});
  auto y = p.output("y", DType::kF32, {rows, cols});
  auto ready = p.signal("ready");
  auto here = p.signal("here", ceil_div(rows, 4));
  auto done = p.signal("done");
  Index right = (p.rank() + 1) % world, left = (p.rank() + world - 1) % world;
  p.on_start([&] { p.notify(ready, left); });
  p.role("pull", Resource::copy_engine(2), p.range(ceil_div(rows, 4)), [&](const Tile& t) {
    p.wait(ready, right);
    p.get(pulled.tile({t.index * 4, 0}, 4, cols), x.on(right).tile({t.index * 4, 0}, 4, cols));
    p.notify(here[t.index], p.rank());
    p.notify(done, right);
  });
  p.role("add", Resource::sms(2), p.range(ceil_div(rows, 4)), [&](const Tile& t) {
    p.wait(here[t.index]);
    p.store(y.tile({t.index * 4, 0}, 4, cols),
            p.load(pulled.tile({t.index * 4, 0}, 4, cols)) + 1.0);
  });
  p.on_end([&] { p.wait(done[left], ceil_div(rows, 4)); });
  return p.finish();
}

Doubles shard(int rank, int launch, std::int64_t n) {
  Doubles v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = rank * 1000 + launch * 100 + static_cast<double>(i % 97);
  }
  return v;
}

void expect_shifted(const RankArguments& arguments, int rank, int launch, int world) {
  Doubles got = arguments.get("y");
  Doubles from = shard((rank + 1) % world, launch, static_cast<std::int64_t>(got.size()));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], from[i] + 1) << "rank " << rank << " launch " << launch << " [" << i << "]";
  }
}

void run_shift(int size, int launches, const std::function<void(Instance&)>& prepare = {}) {
  World world({.size = size});
  auto program = at_schedule_level(shift(size, 13, 6));
  run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    if (prepare) prepare(instance);
    for (int e = 0; e < launches; ++e) {
      arguments.set("x", shard(rank.index(), e, 78));
      instance.launch(arguments.args, arguments.extents);
      expect_shifted(arguments, rank.index(), e, size);
    }
    EXPECT_EQ(instance.epoch(), static_cast<std::uint64_t>(launches));
  });
}

TEST(Protocol, RanksExchangeDataOverManyLaunches) {
  for (int size : {1, 2, 3}) run_shift(size, 50);
}

TEST(Protocol, EightRanksOnFewCores) { run_shift(8, 100); }

TEST(Protocol, DelaysAtAnyPointChangeNothing) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::atomic<std::uint64_t> draws{seed};
  run_shift(3, 40, [&](Instance& instance) {
    instance.set_sync_hook([&](const SyncPoint&) {
      std::mt19937_64 random(draws.fetch_add(1));
      if (random() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  });
}

// A sum over all ranks by packets: no signal, double-buffered, so that a rank one launch ahead does
// not overwrite what a slow one still reads.
Program packet_sum(int world, DType dtype, std::int64_t cols) {
  ProgramBuilder p("packet_sum", world);
  auto x = p.input("x", dtype, {1, cols});
  auto y = p.output("y", dtype, {1, cols});
  auto box = p.buffer("box", dtype, {world, cols},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value mine = p.load(x.tile({0, 0}, 1, cols));
    p.loop(world, [&](const Index& r) {
      p.store_packet(box.on(r).tile({p.rank(), 0}, 1, cols), mine);
    });
    Value sum = p.zeros(DType::kF32, 1, cols);
    p.loop(world, [&](const Index& r) {
      sum = sum + cast(p.load_packet(box.tile({r, 0}, 1, cols)), DType::kF32);
    });
    p.store(y.tile({0, 0}, 1, cols), cast(sum, dtype));
  });
  return p.finish();
}

TEST(Protocol, PacketsCarryDataAndSignalInOne) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    World world({.size = 4});
    auto program = at_schedule_level(packet_sum(4, dtype, 10));
    run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
      for (int e = 0; e < 60; ++e) {
        Doubles mine(10), want(10);
        for (std::size_t i = 0; i < 10; ++i) {
          mine[i] = rank.index() + static_cast<double>(i) + e % 5;
          want[i] = 6 + 4 * (static_cast<double>(i) + e % 5);
        }
        arguments.set("x", mine);
        instance.launch(arguments.args, arguments.extents);
        ASSERT_EQ(arguments.get("y"), want) << "launch " << e;
      }
    });
  }
}

// A role split into consumer and producer, as lowering does: pipes and a barrier between agents. Of
// two ranks, the producers wait for the other one, and rank 0 notifies nobody.
Program split_gemm(int world = 1) {
  ProgramBuilder p("split", world);
  SignalRef ready;
  if (world > 1) {
    ready = p.signal("ready");
    p.on_start([&] { p.when(p.rank() == 1, [&] { p.notify(ready, 0); }); });
  }
  auto a = p.input("a", DType::kF32, {8, 40});
  auto b = p.input("b", DType::kF32, {40, 12});
  auto y = p.output("y", DType::kF32, {8, 12});
  p.role("gemm", Resource::sms(2), p.grid(y, 4, 4), [&](const Tile& t) {
    if (world > 1) p.wait(ready, 1 - p.rank());
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(5, [&](const Index& i) {
      Value left = p.load(a.tile({t.row, i * 8}, 4, 8));
      Value right = p.load(b.tile({i * 8, t.col}, 8, 4));
      acc = dot(acc, left, right);
    });
    p.store(y.tile({t.row, t.col}, 4, 4), acc);
  });
  Program program = p.finish();
  program.level = Level::kSchedule;
  Role& role = program.roles[0];
  Agent producer = role.agents[0], consumer = role.agents[0];
  producer.name = "producer";
  producer.kind = AgentKind::kProducer;
  consumer.name = "consumer";
  consumer.kind = AgentKind::kConsumer;
  role.pipes = {
      {.name = "a", .type = {DType::kF32, 4, 8}, .num_slots = 2, .producer = 1, .consumer = 0},
      {.name = "b", .type = {DType::kF32, 8, 4}, .num_slots = 3, .producer = 1, .consumer = 0}};
  role.barriers = {{.name = "turn", .num_arrivals = 2}};
  auto is = [](OpCode code) { return [code](const Op& op) { return op.code == code; }; };
  std::erase_if(producer.body, is(OpCode::kStore));
  std::erase_if(producer.body, is(OpCode::kFill));
  std::erase_if(consumer.body, is(OpCode::kWait));
  for (Op& op : producer.body) {
    if (op.code != OpCode::kLoop) continue;
    std::erase_if(op.bodies[0], is(OpCode::kDot));
    for (std::size_t i = 0; i < 2; ++i) {
      op.bodies[0][i].code = OpCode::kPipePut;
      op.bodies[0][i].result = -1;
      op.bodies[0][i].symbol = static_cast<int>(i);
    }
  }
  for (Op& op : consumer.body) {
    if (op.code != OpCode::kLoop) continue;
    int pipe = 0;
    for (Op& inner : op.bodies[0]) {
      if (inner.code == OpCode::kLoad) {
        inner.code = OpCode::kPipeGet;
        inner.symbol = pipe++;
        inner.region.reset();
      } else if (inner.code == OpCode::kDot) {
        inner.code = OpCode::kDotAsync;
      }
    }
    op.bodies[0].push_back({.code = OpCode::kAwait, .exprs = {0}});
    op.bodies[0].push_back({.code = OpCode::kPipeRelease, .symbol = 0});
    op.bodies[0].push_back({.code = OpCode::kPipeRelease, .symbol = 1});
  }
  producer.body.push_back({.code = OpCode::kArrive, .symbol = 0});
  consumer.body.push_back({.code = OpCode::kBarrierSync, .symbol = 0});
  role.agents = {std::move(consumer), std::move(producer)};
  return program;
}

TEST(Protocol, PipesConnectTheAgentsOfAWorker) {
  auto program = std::make_shared<const Program>(split_gemm());
  Doubles a(320), b(480), want(96);
  std::mt19937 random(static_cast<unsigned>(test_seed()));
  for (double& v : a) v = static_cast<int>(random() % 9) - 4;
  for (double& v : b) v = static_cast<int>(random() % 9) - 4;
  for (std::size_t i = 0; i < 96; ++i) {
    for (std::size_t l = 0; l < 40; ++l) want[i] += a[i / 12 * 40 + l] * b[l * 12 + i % 12];
  }
  World world({.size = 1});
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    arguments.set("a", a);
    arguments.set("b", b);
    for (int e = 0; e < 3; ++e) {
      instance.launch(arguments.args, arguments.extents);
      ASSERT_EQ(arguments.get("y"), want);
    }
  });
}

TEST(Protocol, StateIsKeptAndSlotsTakeTurns) {
  ProgramBuilder p("slots", 1);
  auto x = p.input("x", DType::kF32, {1, 8});
  auto count = p.state("count", DType::kF32, {1, 8});
  auto ring = p.buffer("ring", DType::kF32, {1, 8}, {.num_slots = 3});
  auto y = p.output("y", DType::kF32, {1, 8});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    p.store(ring.tile({0, 0}, 1, 8), p.load(x.tile({0, 0}, 1, 8)));
    p.worker_fence();
    p.store(y.tile({0, 0}, 1, 8), p.load(ring.tile({0, 0}, 1, 8)));
    p.store(count.tile({0, 0}, 1, 8), p.load(count.tile({0, 0}, 1, 8)) + 1.0);
  });
  auto program = at_schedule_level(p.finish());
  World world({.size = 1});
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    for (int e = 0; e < 7; ++e) {
      arguments.set("x", Doubles(8, e));
      instance.launch(arguments.args, arguments.extents);
      EXPECT_EQ(arguments.get("y"), Doubles(8, e));
      EXPECT_EQ(arguments.get("count"), Doubles(8, e + 1));
    }
  });
}

// Rank 1 does not notify in a launch that is not to talk; the fault must say who waited for what.
Program one_sided() {
  ProgramBuilder p("one_sided", 2);
  Index talks = p.extent("talks", 1);
  auto y = p.output("y", DType::kF32, {1, 1});
  auto ready = p.signal("ready");
  p.role("talk", Resource::host(), p.range(2), [&](const Tile& t) {
    p.when(t.index == 1 && !(talks == 0 && p.rank() == 1), [&] { p.notify_all(ready); });
  });
  p.role("listen", Resource::host(), p.range(3), [&](const Tile& t) {
    p.when(t.index == 2, [&] { p.wait_all(ready); });
    p.store(y.tile({0, 0}, 1, 1), p.full(DType::kF32, 1, 1, 1));
  });
  return p.finish();
}

TEST(Faults, AMissingNotifyIsReportedOnEveryRankAndTheWorldRecovers) {
  World world({.size = 2, .timeout = milliseconds(400)});
  auto program = at_schedule_level(one_sided());
  const Proved ready = unproved(*program);
  std::unique_ptr<Instance> instances[2];
  std::unique_ptr<RankArguments> arguments[2];
  auto launch = [&](Rank& rank, std::int64_t talks) {
    auto r = static_cast<std::size_t>(rank.index());
    arguments[r]->extents = {talks};
    instances[r]->launch(arguments[r]->args, arguments[r]->extents);
  };
  std::atomic<int> faults{0};
  world.run([&](Rank& rank) {
    auto r = static_cast<std::size_t>(rank.index());
    arguments[r] = std::make_unique<RankArguments>(rank, *program);
    instances[r] = std::make_unique<Instance>(rank, ready);
    launch(rank, 1);
    launch(rank, 1);
  });
  try {
    world.run([&](Rank& rank) {
      try {
        launch(rank, 0);
        rank.barrier();
      } catch (const Fault& fault) {
        ++faults;
        EXPECT_EQ(fault.record().program, "one_sided");
        EXPECT_EQ(fault.record().role, "listen");
        EXPECT_EQ(fault.record().tile, 2);
        EXPECT_EQ(fault.record().signal, "ready");
        EXPECT_EQ(fault.record().channel, 1);
        EXPECT_EQ(fault.record().expected, 1);
        EXPECT_EQ(fault.record().seen, 0);
        EXPECT_EQ(fault.record().waited_for, 1);
        EXPECT_EQ(fault.record().reason, "deadline");
        throw;
      }
    });
    ADD_FAILURE() << "no fault";
  } catch (const Fault&) {
  }
  EXPECT_EQ(faults, 2);
  EXPECT_TRUE(world.faulted());
  world.recover();
  world.run([&](Rank& rank) {
    EXPECT_EQ(instances[rank.index()]->epoch(), 0u);
    for (int e = 0; e < 3; ++e) launch(rank, 1);
    rank.barrier();
    arguments[rank.index()].reset();
    instances[rank.index()].reset();
  });
}

// Every rank sends the row of its input that its table says, and waits for the other's.
Program sends_by_table() {
  ProgramBuilder p("by_table", 2);
  auto order = p.table("order", {2}, {ContractKind::kPermutation, 0, 2});
  auto x = p.input("x", DType::kF32, {2, 4});
  auto y = p.output("y", DType::kF32, {2, 4}, Space::kSymmetric);
  auto ready = p.signal("ready"), begun = p.signal("begun");
  p.on_start([&] { p.notify(begun, 1 - p.rank()); });
  p.role("send", Resource::host(), p.range(2), [&](const Tile& t) {
    Index row = p.read(order, {t.index});
    p.wait(begun, 1 - p.rank());
    p.put(y.on(1 - p.rank()).tile({t.index, 0}, 1, 4), x.tile({row, 0}, 1, 4));
    p.notify(ready, 1 - p.rank());
  });
  p.on_end([&] { p.wait(ready[1 - p.rank()], 2); });
  return p.finish();
}

TEST(Faults, ATableThatBreaksItsContractEndsAllRanksAndTheWorldRecovers) {
  World world({.size = 2, .timeout = milliseconds(60'000)});
  std::atomic<int> faults{0};
  auto body = [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    int r = rank.index();
    arguments.set("x", shard(r, 0, 8));
    auto launch = [&](const Doubles& order) {
      arguments.set("order", order);
      instance.launch(arguments.args, arguments.extents);
      rank.barrier();
    };
    launch({1, 0});
    try {
      launch({1, r == 0 ? 0.0 : 7.0});
      ADD_FAILURE() << "no fault";
    } catch (const Fault& fault) {
      ++faults;
      EXPECT_EQ(fault.record().program, "by_table");
      EXPECT_EQ(fault.record().role, "send");
      EXPECT_EQ(fault.record().rank, 1);
      EXPECT_EQ(fault.record().tile, 0);  // the whole table is looked at before the first read
      EXPECT_EQ(fault.record().reason,
                "table 'order' breaks its contract: entry 1 is 7, need 0 <= entry < 2");
      throw;
    }
  };
  auto program = at_schedule_level(sends_by_table());
  EXPECT_THROW(run_program(world, program, body), Fault);  // with the reason above: no deadline
  EXPECT_EQ(faults, 2);
  EXPECT_TRUE(world.faulted());
  world.recover();
  run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    arguments.set("x", shard(rank.index(), 0, 8));
    arguments.set("order", {1, 0});
    instance.launch(arguments.args, arguments.extents);
    rank.barrier();
    Doubles sent = shard(1 - rank.index(), 0, 8), want(sent.begin() + 4, sent.end());
    want.insert(want.end(), sent.begin(), sent.begin() + 4);
    EXPECT_EQ(arguments.get("y"), want);
  });
}

// The consumer waits longer, for a slot. Rank 0, which got what it waited for, stays away from the
// world's barrier until rank 1 has aborted: its deadline there would pass at the same time.
TEST(Faults, AWaitForAnotherRankIsNamedBeforeOneForASlot) {
  auto program = std::make_shared<const Program>(split_gemm(2));
  World world({.size = 2, .timeout = milliseconds(400)});
  std::atomic<int> faults{0};
  auto body = [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    try {
      instance.launch(arguments.args, arguments.extents);
      for (int i = 0; i < 10'000 && !rank.aborted(); ++i) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    } catch (const Fault& fault) {
      ++faults;
      EXPECT_EQ(fault.record().signal, "ready");
      EXPECT_EQ(fault.record().waited_for, 0);
      throw;
    }
  };
  EXPECT_THROW(run_program(world, program, body), Fault);
  EXPECT_GE(faults, 1);
}

TEST(Faults, ARankThatDiesEndsTheOthersWaits) {
  World world({.size = 3, .timeout = milliseconds(60'000)});
  auto program = at_schedule_level(shift(3, 8, 4));
  EXPECT_THROW(run_program(world, program,
                           [&](Rank& rank, Instance& instance, RankArguments& arguments) {
                             instance.launch(arguments.args, arguments.extents);
                             if (rank.index() == 1) throw UserError("rank 1 aborts");
                             instance.launch(arguments.args, arguments.extents);
                           }),
               UserError);
  EXPECT_NE(world.fault().reason.find("rank 1 died"), std::string::npos) << world.fault().reason;
  world.recover();
  EXPECT_FALSE(world.faulted());
}

TEST(Protocol, TheRecorderSeesTilesWaitsAndCopies) {
  World world({.size = 2, .record = true});
  auto program = at_schedule_level(shift(2, 13, 6));
  run_program(world, program, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    if (rank.index() == 1) std::this_thread::sleep_for(milliseconds(5));
    instance.launch(arguments.args, arguments.extents);
  });
  int tiles = 0, waits = 0, copies = 0, launches = 0;
  for (const Span& span : world.recorder().spans()) {
    tiles += span.kind == SpanKind::kTile;
    copies += span.kind == SpanKind::kCopy;
    launches += span.kind == SpanKind::kLaunch;
    waits += span.kind == SpanKind::kWait && span.rank == 0 && span.detail == std::string("ready");
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_STREQ(span.program, "shift");
  }
  EXPECT_EQ(tiles, 2 * 2 * 4);
  EXPECT_EQ(copies, 2 * 4);
  EXPECT_EQ(launches, 2);
  EXPECT_GT(waits, 0);  // rank 0 had to wait for the late rank 1
}

}  // namespace
}  // namespace stretto
