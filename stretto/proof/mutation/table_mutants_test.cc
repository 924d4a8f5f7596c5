// Mutants of programs whose tiles wait by a table: the proof's verdict on each is that of all
// tables, looked at one by one. If this fails, a wrong routing may be launched, or a right one
// refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/proof/mutation/run_mutants.h"
#include "stretto/proof/table_routing_testing.h"

namespace stretto {
namespace {

using table_routing::Gather;

TEST(TableMutants, VerdictsAgreeWithEveryTable) {
  int mutants = 0, rejected = 0;
  for (const Gather& o : {Gather{}, Gather{.staged = false}, Gather{.under_condition = true}}) {
    for (const Mutant& mutant : mutants_of(spread_over_workers(table_routing::gather(o)))) {
      SCOPED_TRACE(mutant.kind + ": " + mutant.site);
      ProofResult r = prove(mutant.program);
      EXPECT_EQ(!r.rejected(), table_routing::holds_for_all(mutant.program)) << r.report;
      EXPECT_TRUE(r.rejected() || r.stats.every_table) << r.stats.sampled_because;
      ++mutants;
      rejected += r.rejected() ? 1 : 0;
    }
  }
  fmt::print("{} mutants, {} rejected\n", mutants, rejected);
  EXPECT_GT(rejected, 50);
}

}  // namespace
}  // namespace stretto
