// What the record of a fault says beyond what the device wrote down. Needs no GPU.
#include "stretto/gpu/describe_fault.h"

#include <gtest/gtest.h>

#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/lang/program_builder.h"

namespace stretto::describe_fault_test {
namespace {

constexpr int kRanks = 3, kTiles = 8, kWorkers = 2;

// Tile t of 'take' waits for what rank (rank + 1 + t / 4) % 3 has sent, twice an epoch; on_end
// waits for the own rank. The second role waits for packets.
Program takes_in_turn() {
  ProgramBuilder p("takes", kRanks);
  Index rows = p.extent("rows", 64);
  TensorRef in = p.input("in", DType::kF32, {rows, 4});
  TensorRef out = p.output("out", DType::kF32, {rows, 4});
  SignalRef ready = p.signal("ready", 2 * kRanks), done = p.signal("done");
  p.on_start([&] {
    p.loop(kRanks, [&](const Index& r) {
      p.notify(ready[p.rank() * 2], r, 1);
      p.notify(ready[p.rank() * 2 + 1], r, 2);
    });
  });
  p.role("take", Resource::sms(kWorkers), p.range(kTiles), [&](const Tile& t) {
    Index owner = p.let("owner", (p.rank() + 1 + t.index / 4) % kRanks);
    p.when(t.index * 8 < rows, [&] {
      p.wait(ready[owner * 2 + t.index % 4 / 2], t.index % 4 / 2 + 1);
      p.store(out.tile({t.index * 8, 0}, 8, 4), p.load(in.tile({t.index * 8, 0}, 8, 4)));
    });
    p.notify(done[p.rank()], p.rank());
  });
  p.on_end([&] { p.wait(done[p.rank()], kTiles); });
  return p.finish();
}

class DescribeFault : public ::testing::Test {
 protected:
  DescribeFault()
      : compiled_(prove(lower(takes_in_turn()))),
        launch_(generate_kernel(compiled_.program()).launch) {}

  // Of rank 1's wait for a counter in `block`, the launch being the fourth.
  FaultRecord of(const char* role, int signal, std::int64_t channel, std::uint64_t at_least,
                 int block, const std::vector<std::int64_t>* extents) const {
    DeviceFault f{.block = block, .rank = 1};
    auto s = static_cast<std::size_t>(signal);
    for (std::size_t i = 0; i < launch_.sites.size(); ++i) {
      const WaitSite& site = launch_.sites[i];
      std::string name =
          site.role < 0 ? "" : compiled_.program().roles[static_cast<std::size_t>(site.role)].name;
      if (site.signal == signal && name == role) f.site = static_cast<int>(i);
    }
    EXPECT_GE(f.site, 0);
    auto quota =
        static_cast<std::uint64_t>(compiled_.quotas()[s][1][static_cast<std::size_t>(channel)]);
    f.counter = launch_.signal_offsets[s] + channel;
    f.expected = 3 * quota + at_least;
    f.seen = 3 * quota;
    return describe_fault(compiled_.program(), launch_, compiled_.quotas(), extents, f);
  }

  Proved compiled_;
  LaunchPlan launch_;
};

TEST_F(DescribeFault, NamesTheWorkersTileAndTheRankWaitedForInCountsOfOneLaunch) {
  std::vector<std::int64_t> all = {64};
  // Tiles 0 and 2 of worker 0 wait for rank 2, channels 4 and 5; tiles 4 and 6 for rank 0.
  FaultRecord r = of("take", 0, 5, 2, 0, &all);
  EXPECT_EQ(
      r.to_string(),
      "takes: role 'take' on rank 1, tile 2, waiting for signal 'ready'[5] >= 2, last seen 0, "
      "from rank 2: deadline");
  r = of("take", 0, 0, 1, 1, &all);  // worker 1
  EXPECT_EQ(r.tile, 5);
  EXPECT_EQ(r.waited_for, 0);
  r = of("", 1, 1, kTiles, 0, &all);
  EXPECT_EQ(r.role, "on_end");
  EXPECT_EQ(r.tile, -1);
  EXPECT_EQ(r.expected, kTiles);
  EXPECT_EQ(r.waited_for, 1);
}

TEST_F(DescribeFault, LeavesOutWhatItDoesNotKnow) {
  FaultRecord r = of("take", 0, 5, 2, 0, nullptr);
  EXPECT_EQ(r.tile, -1);
  EXPECT_EQ(r.waited_for, 2);
  EXPECT_EQ(r.role, "take");
  EXPECT_EQ(r.expected, 2);
  std::vector<std::int64_t> few = {16};  // then no tile waits for that
  r = of("take", 0, 0, 1, 1, &few);
  EXPECT_EQ(r.tile, -1);
  EXPECT_EQ(r.waited_for, 0);
}

TEST_F(DescribeFault, LaunchesOfOtherExtentsTakeTheTileAway) {
  LaunchedExtents extents;
  EXPECT_EQ(extents.same(), nullptr);
  extents.add({5});
  extents.add({5});
  ASSERT_NE(extents.same(), nullptr);
  EXPECT_EQ(*extents.same(), std::vector<std::int64_t>{5});
  extents.add({6});
  EXPECT_EQ(extents.same(), nullptr);
  extents.add({6});
  EXPECT_EQ(extents.same(), nullptr);
}

}  // namespace
}  // namespace stretto::describe_fault_test
