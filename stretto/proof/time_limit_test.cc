// A launch waits for its proof: one that takes too long ends in a word, not in hours, and never in
// a rejection of what nobody found wrong.
#include "stretto/proof/time_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::time_limit_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Ranks send each other m of `rows` rows, each with a notify of its own, into one of `slots` slots.
Program stream(std::int64_t rows, int slots, bool waits) {
  ProgramBuilder p("stream", 2);
  Index m = p.extent("m", rows);
  auto in = p.input("in", DType::kF32, {m, 8});
  auto inbox =
      p.buffer("inbox", DType::kF32, {m, 8}, {.space = Space::kSymmetric, .num_slots = slots});
  auto out = p.output("out", DType::kF32, {m, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(rows), [&](const Tile& t) {
    p.when(t.index == 0, [&] { p.wait(ready, peer); });
    p.put(inbox.on(peer).tile({t.index, 0}, 1, 8), in.tile({t.index, 0}, 1, 8));
    p.notify(sent[p.rank()], peer);
  });
  p.role("recv", Resource::sms(1), p.range(m), [&](const Tile& t) {
    if (waits) p.wait(sent[peer], t.index + 1);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(inbox.tile({t.index, 0}, 1, 8)));
  });
  p.on_end([&] { p.wait(sent[peer], rows); });
  return run_pipeline(p.finish());
}

// No launch of it is seen whole: sizes are looked at one by one.
ProofOptions one_by_one(milliseconds limit, int threads) {
  return {.max_enumerated = 1U << 30, .partition = false, .time_limit = limit, .threads = threads};
}

void expect_ends_in_time(const Program& program, const ProofOptions& options) {
  Clock::time_point begin = Clock::now();
  const ProofResult r = prove(program, options);
  // Much more than between two looks, on a machine that has other work.
  EXPECT_LT(Clock::now() - begin, options.time_limit + std::chrono::seconds(5)) << r.report;
  ASSERT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  ASSERT_EQ(r.missing.size(), 1u) << r.report;
  EXPECT_EQ(r.missing[0].what, kMissingLimit);
  EXPECT_EQ(r.missing[0].where, "time");
  EXPECT_NE(r.missing[0].expression.find("s on the clock"), std::string::npos);
  EXPECT_FALSE(r.within_limits);
}

// Hours without a limit: of sizes one by one, of a single launch, and of many slots.
TEST(TimeLimit, EndsWhatTakesLong) {
  for (int threads : {1, 3}) {
    for (milliseconds limit : {milliseconds(1), milliseconds(300)}) {
      SCOPED_TRACE(fmt::format("{} threads, {} ms", threads, limit.count()));
      expect_ends_in_time(stream(5'000, 1, true), one_by_one(limit, threads));
      expect_ends_in_time(stream(1'000'000, 1, true),
                          {.bounds_only = true, .time_limit = limit, .threads = threads});
      expect_ends_in_time(stream(300, 2000, true), one_by_one(limit, threads));
    }
  }
}

// What is found in time is a rejection, what is not found yet is none.
TEST(TimeLimit, ChangesNoVerdictThatComesInTime) {
  const std::chrono::hours long_enough(1);
  EXPECT_TRUE(prove(stream(40, 1, true), {.time_limit = long_enough}).proved());
  EXPECT_TRUE(prove(stream(40, 1, false), {.time_limit = long_enough}).rejected());
  const ProofResult r = prove(stream(5'000, 1, false), one_by_one(milliseconds(1), 1));
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_TRUE(prove(stream(40, 1, true)).proved()) << "the limit is over with its proof";
}

}  // namespace
}  // namespace stretto::time_limit_test
