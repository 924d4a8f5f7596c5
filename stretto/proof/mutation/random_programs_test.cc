// The proof against brute force: random small programs on two ranks, whose every interleaving is
// walked. If the proof accepts one that can fail, a user's launch is corrupted by it; if it rejects
// one that cannot, a user has to add a wait for nothing.
#include "stretto/proof/mutation/random_programs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/printer.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/mutation/exploration.h"
#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

struct Tally {
  int programs = 0, clean = 0, failing = 0, undecided = 0;
  int rejected_though_clean = 0;
};

// What one program does dynamically, compared with what the proof says.
class ProgramComparison {
 public:
  explicit ProgramComparison(std::uint64_t seed) : seed_(seed) {}

  void compare(const Program& tile_level) {
    Program program = tile_level;
    program.level = Level::kSchedule;
    ProofResult proof = prove(program);
    Exploration dynamic = explored(program);
    ++tally.programs;
    if (!dynamic.complete && dynamic.failure.empty()) {
      ++tally.undecided;
      return;
    }
    if (dynamic.failure.empty()) {
      ++tally.clean;
    } else {
      ++tally.failing;
    }
    // Soundness.
    EXPECT_FALSE(!proof.rejected() && !dynamic.failure.empty())
        << "proved, yet " << dynamic.failure << "\n"
        << print(program);
    std::string observed = controlled(program);
    EXPECT_FALSE(dynamic.failure.empty() && !observed.empty())
        << "the exploration missed " << observed << "\n"
        << print(program);
    // Completeness.
    bool rejected_though_clean = proof.rejected() && dynamic.failure.empty();
    tally.rejected_though_clean += rejected_though_clean ? 1 : 0;
    EXPECT_FALSE(rejected_though_clean) << proof.report << "\n" << print(program);
  }

  Tally tally;

 private:
  // Events that no order makes right (a channel out of range) fail by themselves.
  static Exploration explored(const Program& program) {
    try {
      return explore(expand(program, {}), {.launches = 4, .max_states = 60'000});
    } catch (const Rejected& e) {
      return {.failure = e.what()};
    }
  }

  std::string controlled(const Program& program) {
    auto shared = std::make_shared<const Program>(program);
    try {
      Quotas quotas = count_quotas(program, {});
      for (std::uint64_t i = 0; i < 2; ++i) {
        ControlledOptions options{.launches = 4, .seed = ++seed_, .compute = false};
        if (i == 1) options.policy = SchedulePolicy::kRunAhead;
        ControlledResult result = run_controlled(shared, quotas, options);
        if (!result.ok()) return result.report;
      }
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }

  std::uint64_t seed_;
};

void report(const char* what, const Tally& t) {
  fmt::print("{}: {} programs, {} clean, {} failing, {} undecided; rejected though clean: {}\n",
             what, t.programs, t.clean, t.failing, t.undecided, t.rejected_though_clean);
}

TEST(RandomPrograms, ExchangesAgreeWithEveryInterleaving) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  ProgramComparison comparison(seed);
  for (std::uint64_t i = 0; i < 200; ++i) {
    comparison.compare(sample::RandomProtocol(seed + i).exchange());
  }
  const Tally& t = comparison.tally;
  report("exchanges", t);
  EXPECT_GE(t.clean, 20);
  EXPECT_GE(t.failing, 20);
}

TEST(RandomPrograms, SoupAgreesWithEveryInterleaving) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  ProgramComparison comparison(seed);
  for (std::uint64_t i = 0; i < 400; ++i) {
    comparison.compare(sample::RandomProtocol(seed + i).soup());
  }
  const Tally& t = comparison.tally;
  report("soup", t);
  EXPECT_GE(t.clean, 5);
  EXPECT_GE(t.failing, 100);
}

TEST(RandomPrograms, MutantsOfExchangesAgreeWithEveryInterleaving) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  ProgramComparison comparison(seed);
  for (std::uint64_t i = 0; i < 20; ++i) {
    sample::RandomProtocol random(seed + i);
    Program program = random.exchange();
    program.level = Level::kSchedule;
    std::vector<Mutant> mutants = mutants_of(program);
    for (int k = 0; k < 8; ++k) comparison.compare(random.pick(mutants).program);
  }
  const Tally& t = comparison.tally;
  report("mutants", t);
  EXPECT_GE(t.failing, 20);
}

}  // namespace
}  // namespace stretto
