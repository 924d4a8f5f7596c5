// One rank that stands for all (proof/alike_ranks.h) against all of them, of the shipped operators
// whose ranks are alike and of their mutants. If this fails, a mistake passes because it was looked
// for on one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/alike_ranks.h"
#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/mutation/run_mutants.h"

namespace stretto::alike_ranks_mutants_test {
namespace {

struct Count {
  int programs = 0, mutants = 0, rejected = 0;
};

void expect_same(const std::string& what, const Program& program, Count& count) {
  ProofOptions options = mutant_options();
  ProofResult one = prove(program, options);
  options.one_of_alike = false;
  ProofResult all = prove(program, options);
  EXPECT_EQ(one.verdict, all.verdict) << what << "\n" << one.report << "\n" << all.report;
  count.rejected += all.rejected() ? 1 : 0;
}

void look_at(const std::string& label, const Program& program, std::mt19937_64& random,
             Count& count) {
  constexpr std::size_t kMostMutants = 16;
  if (!ranks_are_alike(program)) return;
  ++count.programs;
  expect_same(label, program, count);
  std::vector<Mutant> mutants = mutants_of(program);
  std::ranges::shuffle(mutants, random);
  mutants.resize(std::min(mutants.size(), kMostMutants));
  for (const Mutant& m : mutants) {
    expect_same(fmt::format("{}: {} at {}", label, m.kind, m.site), m.program, count);
    ++count.mutants;
  }
}

TEST(AlikeRanksMutants, OneRankSaysWhatAllSay) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  Count count;
  for (const OperatorInfo& op : catalog()) {
    int world = random() % 2 == 0 ? 2 : 3;
    std::string label = fmt::format("{} P={}", op.name, world);
    look_at(label, spread_over_workers(run_pipeline(op.program(op.shapes(world)[1]))), random,
            count);
    look_at(label + " gpu", spread_over_workers(run_pipeline(op.program(gpu_shape(op, world)))),
            random, count);
  }
  fmt::print("{} programs, {} mutants, {} rejected\n", count.programs, count.mutants,
             count.rejected);
  EXPECT_GT(count.programs, 10);
  EXPECT_GT(count.rejected, 10);
}

}  // namespace
}  // namespace stretto::alike_ranks_mutants_test
