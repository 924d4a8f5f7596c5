// Many accesses to the same memory are settled by runs, few of them pair by pair: the verdict and
// every word of the report are the same. If these fail, a race between tiles far into a stream is
// proved, or long streams take hours.
#include "stretto/proof/access_runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/random_programs.h"
#include "stretto/proof/mutation/run_mutants.h"
#include "stretto/proof/table_routing_testing.h"

namespace stretto {
namespace {

class Comparison {
 public:
  // What a finding lacks is looked for step by step, which takes long where programs are large.
  void compare(const Program& program, int max_findings = 4) {
    ProofOptions by_pairs = mutant_options(), by_runs = by_pairs;
    by_runs.max_findings = by_pairs.max_findings = max_findings;
    by_runs.few_pairs = 0;
    by_pairs.few_pairs = std::numeric_limits<std::size_t>::max();
    ProofResult expected = prove(program, by_pairs), got = prove(program, by_runs);
    ASSERT_EQ(got.verdict, expected.verdict) << got.report << "\n" << expected.report;
    ASSERT_EQ(got.findings.size(), expected.findings.size());
    for (std::size_t i = 0; i < got.findings.size(); ++i) {
      EXPECT_EQ(got.findings[i].kind, expected.findings[i].kind);
      EXPECT_EQ(got.findings[i].text, expected.findings[i].text);
      kinds.insert(got.findings[i].kind);
    }
    ++(got.rejected() ? rejected : proved);
  }
  int proved = 0, rejected = 0;
  std::set<FindingKind> kinds;
};

struct StreamChoices {
  int tiles = 4, slots = 2, credits = 2, launches = 1;  // slots of a launch, of launches
  bool waits_for_credit = true;
  int send_early = 0, add_early = 0, free_early = 0;  // thresholds that are too low
  int send_workers = 1, add_workers = 1;
  bool second_reader = false, reads_back = false, fenced = true, sums = false;
};

// Tiles of `in` through slots of the other rank's inbox.
Program stream(const StreamChoices& c) {
  constexpr int kCols = 4;
  ProgramBuilder p("stream", 2);
  auto in = p.input("in", DType::kF32, {c.tiles, kCols});
  auto inbox = p.buffer("inbox", DType::kF32, {c.slots, 1, kCols},
                        {.space = Space::kSymmetric, .num_slots = c.launches});
  auto scratch = p.buffer("scratch", DType::kF32, {1, kCols});
  auto sum = p.buffer("sum", DType::kF32, {1, kCols}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {c.tiles, kCols});
  auto free = p.signal("free"), sent = p.signal("sent"), seen = p.signal("seen");
  Index other = 1 - p.rank();
  p.on_start([&] { p.notify(free[p.rank()], other, c.credits); });
  auto row = [](const TensorRef& t, const Index& i) { return t.tile({i, 0}, 1, kCols); };
  auto slot = [&](const TensorRef& t, const Index& i) {
    return t.tile({i % c.slots, 0, 0}, 1, kCols);
  };
  p.role("send", Resource::sms(c.send_workers), p.range(c.tiles), [&](const Tile& t) {
    if (c.waits_for_credit) p.wait(free[other], max(t.index + 1 - c.send_early, 0));
    p.store(slot(inbox.on(other), t.index), p.load(row(in, t.index)));
    p.notify(sent, other);
  });
  p.role("add", Resource::sms(c.add_workers), p.range(c.tiles), [&](const Tile& t) {
    p.wait(sent[other], max(t.index + 1 - c.add_early, 0));
    if (c.second_reader) p.wait(seen[p.rank()], max(t.index + 1 - c.free_early, 0));
    Value got = p.load(slot(inbox, t.index));
    if (c.reads_back) {
      p.store(row(scratch, 0), got);
      if (c.fenced) p.worker_fence();
      got = p.load(row(scratch, 0));
    }
    if (c.sums) p.reduce_store(row(sum.on(other), 0), got);
    p.store(row(out, t.index), got);
    p.notify(free[p.rank()], other);
  });
  if (c.second_reader) {
    p.role("look", Resource::sms(1), p.range(c.tiles), [&](const Tile& t) {
      p.wait(sent[other], t.index + 1);
      p.load(slot(inbox, t.index));
      p.notify(seen, p.rank());
    });
  }
  return run_pipeline(p.finish());
}

TEST(AccessRuns, StreamsAreJudgedAsPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto pick = [&](int lo, int hi) { return std::uniform_int_distribution<>(lo, hi)(random); };
  auto rarely = [&](int most) { return pick(0, 3) == 0 ? pick(0, most) : 0; };
  Comparison c;
  for (int i = 0; i < 2000; ++i) {
    int tiles = pick(1, 9), slots = rarely(1) == 1 ? tiles : pick(1, 3);
    // Slots that are taken to be free at first: the last reads of the launch before are not over.
    bool credits = pick(0, 3) > 0;
    c.compare(stream({.tiles = tiles,
                      .slots = slots,
                      .credits = credits ? slots + rarely(2) - rarely(1) : 0,
                      .launches = pick(1, 2),
                      .waits_for_credit = rarely(1) == 0,
                      .send_early = credits ? rarely(3) : slots + rarely(1),
                      .add_early = rarely(3),
                      .free_early = rarely(3),
                      .send_workers = 1 + rarely(1),
                      .add_workers = 1 + rarely(1),
                      .second_reader = rarely(1) == 1,
                      .reads_back = rarely(1) == 1,
                      .fenced = rarely(1) == 0,
                      .sums = rarely(1) == 1}));
  }
  fmt::print("{} streams proved, {} rejected\n", c.proved, c.rejected);
  EXPECT_GE(c.proved, 50);
  EXPECT_GE(c.rejected, 50);
  EXPECT_EQ(c.kinds.count(FindingKind::kRace) + c.kinds.count(FindingKind::kReuse), 2u);
}

TEST(AccessRuns, RandomProgramsAreJudgedAsPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  Comparison c;
  for (std::uint64_t i = 0; i < 300; ++i) {
    c.compare(sample::RandomProtocol(seed + i).exchange());
    c.compare(sample::RandomProtocol(seed + i).soup());
  }
  EXPECT_GE(c.proved, 30);
  EXPECT_GE(c.rejected, 100);
}

TEST(AccessRuns, MutantsOfEveryOperatorAreJudgedAsPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  sample::RandomProtocol random(seed);
  Comparison c;
  for (const OperatorInfo& op : drawn_of("access runs", catalog(), 2)) {
    // To reject one of their mutants takes minutes: tables are looked for one by one.
    if (std::string_view(op.name).ends_with("_v") && std::getenv("STRETTO_SOAK") == nullptr) {
      fmt::print("skipped: mutants of {}: deferred to --long\n", op.name);
      continue;
    }
    std::vector<Program> programs = {op.program(op.shapes(2)[1]), op.program(gpu_shape(op, 2))};
    for (Program& program : programs) {
      Program split = spread_over_workers(run_pipeline(std::move(program)));
      c.compare(split);
      std::vector<Mutant> mutants = mutants_of(split);
      for (int i = 0; i < 6 && !mutants.empty(); ++i) c.compare(random.pick(mutants).program, 1);
    }
  }
  fmt::print("{} mutants proved, {} rejected\n", c.proved, c.rejected);
  EXPECT_GE(c.proved, 20);
  EXPECT_GE(c.rejected, 40);
}

TEST(AccessRuns, WaitsByTableAreJudgedAsPairByPair) {
  using table_routing::Gather;
  Comparison c;
  for (const Gather& o : {Gather{}, Gather{.staged = false}, Gather{.under_condition = true}}) {
    Program program = spread_over_workers(table_routing::gather(o));
    c.compare(program);
    for (const Mutant& mutant : mutants_of(program)) c.compare(mutant.program);
  }
  EXPECT_GE(c.proved, 20);
  EXPECT_GE(c.rejected, 50);
}

// Four times the tiles take four times as long, not sixteen times.
TEST(AccessRuns, LongStreamsTakeTheTimeOfTheirLength) {
  auto seconds = [](int tiles) {
    Program program = stream({.tiles = tiles});
    std::clock_t begin = std::clock();
    EXPECT_TRUE(prove(program, {.threads = 1}).proved());
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  double some = seconds(3000), many = seconds(12000);
  EXPECT_LT(many, 9 * some) << "3,000 tiles take " << some << " s, 12,000 take " << many << " s";
}

}  // namespace
}  // namespace stretto
