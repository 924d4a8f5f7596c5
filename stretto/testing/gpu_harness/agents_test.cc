// Agents that share a block, on a GPU or a simulated one, beside CPU ranks: products of which some
// are no matrix instructions, consumers in turn, guests, and schedules written by hand. A user who
// loses this reads what the tensor core has yet to write, or another agent's sums, or waits for
// ever. All values are small integers, so that every order of every sum gives the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ir/parser.h"
#include "stretto/lang/program_builder.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/case_memory.h"

namespace stretto {
namespace {

constexpr DType kIn = DType::kBF16, kSum = DType::kF32;

// Inputs, and what CPU ranks make of them.
OpCase case_of(const Program& program, std::uint64_t seed) {
  OpCase c{.program = program, .config = program.name};
  c.inputs = c.expected = no_values(program);
  std::mt19937_64 random(seed);
  for (std::vector<Values>& rank : c.inputs) {
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      if (tensor.kind != TensorKind::kInput) continue;
      rank[t].resize(storage_bytes(program, static_cast<int>(t)) / size_bytes(tensor.dtype));
      for (double& x : rank[t]) x = std::uniform_int_distribution(-3, 3)(random);
    }
  }
  Proved compiled = prove(lower(program));
  auto world = std::make_shared<World>(WorldOptions{.size = program.world_size});
  world->run([&](Rank& rank) {
    CaseMemory memory(rank, c);
    std::unique_ptr<Executable> loaded = load(compiled, rank);
    memory.launch(*loaded);
    rank.barrier();
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      if (tensor.kind != TensorKind::kOutput) continue;
      std::size_t count = memory.bytes_of(t).size() / size_bytes(tensor.dtype);
      Values& out = c.expected[static_cast<std::size_t>(rank.index())][t];
      for (std::size_t i = 0; i < count; ++i) out.push_back(memory.element(t, i));
    }
  });
  return c;
}

std::string difference(const Program& program, int delays = 0) {
  std::uint64_t seed = test_seed();
  OpCase c = case_of(program, seed);
  GpuWorld world({.size = program.world_size});
  GpuRunOptions options{.back_to_back = 3, .seed = seed, .kernel = {}};
  options.kernel.delays = KernelDelays{.seed = seed + static_cast<std::uint64_t>(delays)};
  std::string found = run_gpu_case(world, c, options);
  return found.empty() ? "" : fmt::format("{}\nSTRETTO_TEST_SEED={}", found, seed);
}

Program from_file(const std::string& name) {
  const std::string path = "stretto/testing/gpu_harness/schedules/" + name;
  std::ifstream in(path);
  if (!in) throw UserError("cannot read " + path);
  std::stringstream text;
  text << in.rdbuf();
  return parse(text.str(), name, MissingLocs::kFill);
}

class Agents : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < 2) GTEST_SKIP() << "no two GPUs";
  }
};

TEST_F(Agents, ProductsByThreadsBesideThoseOfTheTensorCore) {
  constexpr std::int64_t kTiles = 4, kInner = 1024;
  ProgramBuilder p("mixed_products", 1);
  auto a = p.input("a", kIn, {64 * kTiles, kInner}), b = p.input("b", kIn, {64, kInner});
  auto d = p.input("d", kSum, {64 * kTiles, kInner}), e = p.input("e", kSum, {16, kInner});
  auto c = p.output("c", kSum, {64 * kTiles, 64}), f = p.output("f", kSum, {64 * kTiles, 16});
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(kTiles), [&](const Tile& t) {
    Value acc = p.zeros(kSum, 64, 64), other = p.zeros(kSum, 64, 16);
    Index row = t.index * 64;
    p.loop(kInner / 64, [&](const Index& i) {
      acc =
          dot(acc, p.load(a.tile({row, i * 64}, 64, 64)), p.load(b.tile({0, i * 64}, 64, 64)).T());
      other = dot(other, p.load(d.tile({row, i * 64}, 64, 64)),
                  p.load(e.tile({0, i * 64}, 16, 64)).T());
    });
    p.store(c.tile({row, 0}, 64, 64), acc);
    p.store(f.tile({row, 0}, 64, 16), other);
  });
  EXPECT_EQ(difference(p.finish()), "");
}

// Tiles come to one counter with thresholds that rise and fall: what was waited for need not be
// looked at again, and what was not has to be.
TEST_F(Agents, ThresholdsOfOneCounterRiseAndFall) {
  constexpr std::int64_t kBlocks = 8, kRows = 64, kInner = 128;
  ProgramBuilder p("thresholds", 1);
  auto a = p.input("a", kIn, {kBlocks * kRows, kInner}), b = p.input("b", kIn, {64, kInner});
  auto x = p.buffer("x", kIn, {kBlocks * kRows, kInner});
  auto c = p.output("c", kSum, {kBlocks * kRows, 64});
  auto made = p.signal("made", 2), multiplied = p.signal("multiplied", 1);
  // What the launch before made does not pass for this one's.
  p.on_start([&] {
    p.loop(kRows / 8, [&](const Index& i) {
      Index row = (kBlocks - 1) * kRows + i * 8;
      p.store(x.tile({row, 0}, 8, kInner), p.zeros(kIn, 8, kInner));
    });
  });
  p.role("make", Resource::sms(1), p.range(kBlocks), [&](const Tile& t) {
    // The last block is late for whoever goes by the fifth, which shares its counter.
    p.when(t.index == kBlocks - 1, [&] { p.wait(multiplied[0], 3); });
    p.loop(kRows / 8, [&](const Index& i) {
      Index row = t.index * kRows + i * 8;
      p.store(x.tile({row, 0}, 8, kInner), p.load(a.tile({row, 0}, 8, kInner)));
    });
    p.notify(made[t.index % 2], p.rank());
  });
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(2 * kBlocks), [&](const Tile& t) {
    Index block = p.let("block", t.index * 5 % kBlocks);  // 0, 5, 2, 7, 4, 1, 6, 3, and again
    Index cols = p.let("cols", t.index / kBlocks * 32);
    p.wait(made[block % 2], block / 2 + 1);
    Value acc = p.zeros(kSum, kRows, 32);
    p.loop(kInner / 64, [&](const Index& i) {
      acc = dot(acc, p.load(x.tile({block * kRows, i * 64}, kRows, 64)),
                p.load(b.tile({cols, i * 64}, 32, 64)).T());
    });
    p.store(c.tile({block * kRows, cols}, kRows, 32), acc);
    p.notify(multiplied[0], p.rank());
  });
  EXPECT_EQ(difference(p.finish()), "");
}

// The second of each step has an inner size that no matrix instruction takes.
TEST_F(Agents, ProductsOfProducts) {
  ProgramBuilder p("chained_products", 1);
  auto a = p.input("a", kIn, {256, 192}), b = p.input("b", kIn, {24, 192}),
       w = p.input("w", kIn, {256, 24});
  auto c = p.output("c", kSum, {256, 24});
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(4), [&](const Tile& t) {
    Value acc = p.zeros(kSum, 64, 24);
    p.loop(4, [&](const Index& i) {
      Value first = dot(p.zeros(kSum, 64, 24), p.load(a.tile({t.index * 64, i * 48}, 64, 48)),
                        p.load(b.tile({0, i * 48}, 24, 48)).T());
      Value factor = cast(minimum(maximum(first, -4.0), 4.0), kIn);
      acc = dot(acc, factor, p.load(w.tile({0, 0}, 24, 24)));
    });
    p.store(c.tile({t.index * 64, 0}, 64, 24), acc);
  });
  EXPECT_EQ(difference(p.finish()), "");
}

// A warpgroup leaves out all of the one product and none of the other.
TEST_F(Agents, ProductsThatLeaveOutRowsBesideThoseThatDoNot) {
  constexpr std::int64_t kTiles = 4, kInner = 1024;
  ProgramBuilder p("rows_left_out", 1);
  auto a = p.input("a", kIn, {128 * kTiles, kInner}), b = p.input("b", kIn, {64, kInner}),
       d = p.input("d", kIn, {128 * kTiles, kInner});
  auto c = p.output("c", kSum, {128 * kTiles, 64}), f = p.output("f", kSum, {128 * kTiles, 64});
  p.role("multiply", Resource::sms(1).pipelined(2), p.range(kTiles), [&](const Tile& t) {
    Value acc = p.zeros(kSum, 128, 64), other = p.zeros(kSum, 128, 64);
    Index row = t.index * 128, rows = 30 + t.index * 5;
    p.loop(kInner / 64, [&](const Index& i) {
      Value y = p.load(b.tile({0, i * 64}, 64, 64));
      acc = dot(acc, p.load(a.tile({row, i * 64}, 128, 64).until_row(row + rows)), y.T(), rows);
      other = dot(other, p.load(d.tile({row, i * 64}, 128, 64)), y.T());
    });
    p.store(c.tile({row, 0}, 128, 64), acc);
    p.store(f.tile({row, 0}, 128, 64), other);
  });
  EXPECT_EQ(difference(p.finish()), "");
}

// Consumers in turn; loads outside of loops; sums over rows, for which each needs shared memory.
TEST_F(Agents, TurnsWithLoadsOutsideOfLoops) {
  ProgramBuilder p("turn_pair", 1);
  auto a = p.input("a", kIn, {512, 128}), b = p.input("b", kIn, {64, 128});
  auto c = p.output("c", kSum, {512, 64});
  p.role("multiply", Resource::sms(1).pipelined(2).ping_pong(2), p.range(8), [&](const Tile& t) {
    Index row = t.index * 64;
    auto multiply = [&](const Value& acc, const Index& col) {
      return dot(acc, p.load(a.tile({row, col}, 64, 64)), p.load(b.tile({0, col}, 64, 64)).T());
    };
    Value acc = multiply(p.zeros(kSum, 64, 64), 0);
    p.loop(1, [&](const Index&) { acc = multiply(acc, 64); });
    p.store(c.tile({row, 0}, 64, 64), acc);
  });
  EXPECT_EQ(difference(p.finish()), "");
}

TEST_F(Agents, TurnsThatReduceAtTheSameTime) {
  constexpr std::int64_t kTiles = 16, kCols = 128;
  ProgramBuilder p("reducing_turns", 1);
  auto a = p.input("a", kIn, {64 * kTiles, 256}), b = p.input("b", kIn, {kCols, 256});
  auto c = p.output("c", kSum, {kTiles, kCols});
  p.role("multiply", Resource::sms(1).pipelined(4).ping_pong(2), p.range(kTiles),
         [&](const Tile& t) {
           Value acc = p.zeros(kSum, 64, kCols);
           p.loop(4, [&](const Index& i) {
             acc = dot(acc, p.load(a.tile({t.index * 64, i * 64}, 64, 64)),
                       p.load(b.tile({0, i * 64}, kCols, 64)).T());
           });
           p.store(c.tile({t.index, 0}, 1, kCols), col_sum(acc));
         });
  EXPECT_EQ(difference(p.finish()), "");
}

// The producer reduces to the rows that it picks, the consumer what it multiplies.
TEST_F(Agents, ProducerThatReduces) {
  constexpr std::int64_t kTiles = 16;
  ProgramBuilder p("picked_by_maximum", 1);
  auto scores = p.input("scores", DType::kI32, {16, 64 * kTiles});
  auto rows = p.input("rows", kIn, {64, 256}), b = p.input("b", kIn, {64, 256});
  auto c = p.output("c", kSum, {kTiles, 64});
  p.role("multiply", Resource::sms(1).pipelined(3), p.range(kTiles), [&](const Tile& t) {
    Value picked = col_max(p.load(scores.tile({0, t.index * 64}, 16, 64))).T();
    Value acc = p.zeros(kSum, 64, 64);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load_rows(rows.tile({0, i * 64}, 64, 64), picked),
                p.load(b.tile({0, i * 64}, 64, 64)).T());
    });
    p.store(c.tile({t.index, 0}, 1, 64), col_sum(acc));
  });
  EXPECT_EQ(difference(p.finish()), "");
}

// A guest that multiplies and stores 16 bits, beside hosts of one warpgroup, and of three that
// multiply in turn.
TEST_F(Agents, GuestsThatStoreProducts) {
  for (std::int64_t rows : {64, 192}) {
    ProgramBuilder p("storing_guest", 1);
    auto a = p.input("a", kIn, {rows * 4, 256}), b = p.input("b", kIn, {64, 256}),
         w = p.input("w", kIn, {64, 16});
    auto picks = p.input("picks", DType::kI32, {rows * 4, 1});
    auto c = p.output("c", kIn, {rows * 4, 64}), d = p.output("d", kIn, {256, 16});
    Resource sms = Resource::sms(1).pipelined(3);
    if (rows > 64) sms = sms.multiplying(ProductOrder::kInTurn);
    int host = p.role("host", sms, p.range(4), [&](const Tile& t) {
      Value picked = p.load(picks.tile({t.index * rows, 0}, rows, 1));
      Value acc = p.zeros(kSum, rows, 64);
      p.loop(4, [&](const Index& i) {
        Value x = p.load_rows(a.tile({0, i * 64}, rows, 64), picked);
        acc = acc + dot(p.zeros(kSum, rows, 64), x, p.load(b.tile({0, i * 64}, 64, 64)).T()) * 2.0;
      });
      p.store(c.tile({t.index * rows, 0}, rows, 64), cast(acc, kIn));
    });
    p.role("guest", Resource::sms(1).beside_role(host), p.range(4), [&](const Tile& t) {
      Value acc = dot(p.zeros(kSum, 64, 16), p.load(a.tile({t.index * 64, 0}, 64, 64)),
                      p.load(w.tile({0, 0}, 64, 16)));
      p.store(d.tile({t.index * 64, 0}, 64, 16), cast(acc, kIn));
    });
    EXPECT_EQ(difference(p.finish()), "") << rows;
  }
}

// Schedules: two agents of two warpgroups that multiply in turn; eight agents; a barrier of a host
// beside the team of its guest; agents that reduce at the same time.
TEST_F(Agents, SchedulesByHand) {
  for (const char* name : {"turns.ir", "eight_agents.ir", "barrier_beside.ir"}) {
    EXPECT_EQ(difference(from_file(name)), "") << name;
  }
}

// A slot whose source another rank writes again once the consumer has met its producer.
TEST_F(Agents, ScheduleOfTwoRanks) {
  for (int tries = 0; tries < 4; ++tries) {  // a race, which shows with some delays
    EXPECT_EQ(difference(from_file("copied_before_arriving.ir"), tries), "");
  }
}

}  // namespace
}  // namespace stretto
