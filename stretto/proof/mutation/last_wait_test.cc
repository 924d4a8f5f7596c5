// The last wait of sequence_attention, for all chunks that others send, taken away. On three ranks
// this is a race or none by whether the program has a window:
//
// - Without a window every chunk is sent to every rank. Causal attention on rank r of P sees the
//   chunks before its own later one, 2P - 1 - r, so rank 2 of 3 never waits for chunks 4 and 5, of
//   ranks 1 and 0. Rows of a chunk begin at its number times ceil(m / 6). After a launch of other
//   sizes the rows of another sender's chunk lie there: both write them, and nothing orders the
//   two, as each sender waits for the receiver's launch alone. At one size for ever a chunk has one
//   sender, whose launches follow each other.
// - With a window a chunk is sent where some row of the receiver sees it (`sees_chunk`). The tile
//   of that row waits for all copies of the chunk, so a launch ends after all that it is sent.
//   Nothing is left for the last wait to order but notifies, which count up for ever and come from
//   one rank per channel.
//
// The bound does not matter.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

Program without_last_wait(std::int64_t bound, std::int64_t window) {
  SequenceAttentionDesc d{.m = bound, .num_heads = 2, .head_dim = 4, .window = window};
  d.world_size = 3;
  SequenceAttentionConfig c{.tile_rows = 2, .tile_kv = 3, .comm_rows = 2, .num_workers = 2};
  c.num_queues = 2;
  Program program = run_pipeline(sequence_attention(d, c));
  program.on_end.body.clear();
  return program;
}

// The first race of so many random schedules of launches of sizes in turn.
std::string dynamic_race(const Program& program, std::int64_t bound, int tries) {
  auto shared = std::make_shared<const Program>(program);
  Quotas quotas = count_quotas(program, extent_bounds(program));
  std::uint64_t seed = test_seed();
  for (int i = 0; i < tries; ++i) {
    ControlledOptions options{.launches = 3, .seed = seed + static_cast<std::uint64_t>(i)};
    options.compute = false;
    options.policy = i % 2 == 0 ? SchedulePolicy::kDelayRank : SchedulePolicy::kRandom;
    options.delayed_rank = i / 2 % 3;
    std::int64_t shorter = bound - 1 - i % (bound / 2);
    options.extents_in_turn = {{bound}, {shorter}, {bound - i % 7}};
    ControlledResult result = run_controlled(shared, quotas, options);
    if (!result.ok()) return result.report;
  }
  return "";
}

class LastWait : public testing::TestWithParam<std::int64_t> {};

TEST_P(LastWait, IsNeededWhereAllIsSent) {
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(test_seed()));
  Program program = without_last_wait(GetParam(), 0);
  ProofResult result = prove(program);
  EXPECT_TRUE(result.rejected()) << result.report;
  EXPECT_NE(result.report.find("in launch 1"), std::string::npos) << result.report;
  EXPECT_NE(dynamic_race(program, GetParam(), 200), "") << "no run shows it";
}

TEST_P(LastWait, IsNotNeededWhereOnlyWhatIsSeenIsSent) {
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(test_seed()));
  Program program = without_last_wait(GetParam(), GetParam() / 4 + 1);
  ProofResult result = prove(program);
  EXPECT_FALSE(result.rejected()) << result.report;
  EXPECT_EQ(dynamic_race(program, GetParam(), 40), "");
}

INSTANTIATE_TEST_SUITE_P(Bounds, LastWait, testing::Values(24, 25, 64, 72, 80, 100));

}  // namespace
}  // namespace stretto
