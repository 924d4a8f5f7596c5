// Accesses to a buffer that are judged all at once, across launches: what is said of them together
// has to be so of every pair. If these fail, a launch may write a slot that another rank still
// reads in the one before, and is proved.
#include "stretto/proof/reuse_frontier.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/meetings.h"
#include "stretto/proof/mutation/random_programs.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/sample.h"
#include "stretto/proof/timeline.h"

namespace stretto {
namespace {

constexpr int kLaunches = 4;

std::vector<AccessRef> all_of(const TensorUse& use) {
  std::vector<AccessRef> out;
  for (const BoxUse& box : use.uses) {
    out.insert(out.end(), box.reads.begin(), box.reads.end());
    out.insert(out.end(), box.writes.begin(), box.writes.end());
  }
  return out;
}

struct Judged {
  int over = 0, open = 0;
};

// Every pair of the launch and a later one, wherever the two lie.
bool every_pair_is_over(const InstanceGraph& graph, const TensorUse& use, int later,
                        const HappensBefore& order, AccessPaths& paths) {
  for (const AccessRef& x : all_of(use)) {
    for (const AccessRef& y : all_of(use)) {
      bool read = x.access->kind == AccessKind::kRead && y.access->kind == AccessKind::kRead;
      if (read || graph.agents[static_cast<std::size_t>(x.agent)].rank ==
                      graph.agents[static_cast<std::size_t>(y.agent)].rank) {
        continue;
      }
      for (Past past : paths.pasts(graph, x)) {
        for (Path path : paths.paths(graph, y)) {
          Place from = place(x, 0), to = place(y, later);
          bool over =
              order.before(from, to, past, path, y.access->choice) ||
              order.before_by_end(from, to, past, path, x.access->when, y.access->choice);
          if (!over) return false;
        }
      }
    }
  }
  return true;
}

void compare(const Program& program, Judged& judged) {
  InstanceGraph graph = expand(program, extent_bounds(program), nullptr, PipeLoopMode::kFold);
  Timeline timeline;
  timeline.launches.assign(kLaunches, &graph);
  Execution execution = execute(timeline);
  if (!execution.finished) return;
  HappensBefore order(timeline, execution);
  AccessPaths paths;
  for (const TensorUse& use : index_accesses(graph)) {
    for (int later = 1; later < kLaunches; ++later) {
      bool over = over_before_launch({graph, use, 0}, {graph, use, later}, order, paths);
      bool each = every_pair_is_over(graph, use, later, order, paths);
      EXPECT_TRUE(each || !over) << "launch " << later << ", tensor " << use.tensor;
      if (use.remote) ++(each ? judged.over : judged.open);
      EXPECT_TRUE(over || !each) << "what goes by last and first accesses is all there is to see";
    }
  }
}

TEST(ReuseFrontier, WhatIsOverTogetherIsOverPairByPair) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  Judged judged;
  for (std::uint64_t i = 0; i < 500; ++i) {
    for (Program program : {sample::RandomProtocol(seed + i).exchange(),
                            sample::RandomProtocol(seed + i).soup()}) {
      try {
        compare(run_pipeline(std::move(program)), judged);
      } catch (const std::exception&) {  // no program
        continue;
      }
    }
  }
  fmt::print("{} buffers are over before a later launch, {} are not\n", judged.over, judged.open);
  EXPECT_GE(judged.over, 50);
  EXPECT_GE(judged.open, 50);
}

// Workers read parts of an inbox and say that they are done; the next launch's sender waits for so
// many of them before it writes all of it.
ProofResult inbox(int readers, int waited_for, bool early) {
  ProgramBuilder p("inbox", 2);
  auto x = p.input("x", DType::kF32, {readers, 8});
  auto slots = p.buffer("slots", DType::kF32, {readers, 8}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {readers, 8});
  auto done = p.signal("done", readers), sent = p.signal("sent");
  Index other = 1 - p.rank();
  // As if a launch before this one had been read.
  p.role("send", Resource::sms(1), p.range(readers), [&](const Tile& t) {
    p.store(slots.on(other).tile({t.index, 0}, 1, 8), p.load(x.tile({t.index, 0}, 1, 8)));
    p.notify(sent, other);
  });
  p.role("read", Resource::sms(readers), p.range(readers), [&](const Tile& t) {
    p.wait(sent[other], readers);
    if (early) p.notify(done[t.index], other);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(slots.tile({t.index, 0}, 1, 8)));
    if (!early) p.notify(done[t.index], other);
  });
  p.on_end([&] { p.loop(waited_for, [&](const Index& i) { p.wait(done[i], 1); }); });
  ProofOptions all_at_once;
  all_at_once.few_pairs = 0;
  return prove(run_pipeline(p.finish()), all_at_once);
}

TEST(ReuseFrontier, EveryReaderCounts) {
  constexpr int kReaders = 4;
  EXPECT_TRUE(inbox(kReaders, kReaders, false).proved());
  for (int few = 0; few < kReaders; ++few) {
    ProofResult result = inbox(kReaders, few, false);
    ASSERT_TRUE(result.rejected()) << "a slot may still be read";
    EXPECT_EQ(result.findings[0].kind, FindingKind::kReuse) << result.report;
  }
}

TEST(ReuseFrontier, AReaderIsOverWithItsLastRead) {
  ProofResult result = inbox(4, 4, true);
  ASSERT_TRUE(result.rejected()) << "a slot may still be read";
  EXPECT_EQ(result.findings[0].kind, FindingKind::kReuse) << result.report;
}

}  // namespace
}  // namespace stretto
