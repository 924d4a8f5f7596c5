// Waits that slots tell of, as CUDA text. A user who loses this polls memory at the beginning of
// every tile while nothing is multiplied, or reads and stores before what was waited for.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::elided_waits_test {
namespace {

enum class WaitPosition : std::uint8_t { kBeforeLoop, kBeforeStore, kBeforeBoth, kAfterLoop };

struct Sample {
  WaitPosition place = WaitPosition::kBeforeLoop;
  bool any_steps = false;  // as many as a launch says, or none
  int stagger = 0;
  bool picked = true;  // threads copy rows of x that an index picks, beside the one that issues
};

// x is made by one role, multiplied by another, and what that stores is copied by a third.
Program chain(const Sample& s) {
  constexpr std::int64_t kTile = 128, kStep = 64, kSize = 512;
  ProgramBuilder p("chain", 1);
  Index k = s.any_steps ? p.extent("k", kSize) : Index(kSize);
  auto in = p.input("in", DType::kBF16, {kSize, kSize}),
       b = p.input("b", DType::kBF16, {256, kSize});
  auto x = p.buffer("x", DType::kBF16, {kSize, kSize}),
       c = p.buffer("c", DType::kBF16, {kSize, 256});
  auto out = p.output("out", DType::kBF16, {kSize, 256});
  auto rows = p.input("rows", DType::kI32, {kSize, 1});
  auto made = p.signal("made", kSize / kTile), stored = p.signal("stored", kSize / kTile);
  auto copy = [&](const TensorRef& from, const TensorRef& to, const Index& tile,
                  std::int64_t cols) {
    p.loop(kTile / 8, [&](const Index& i) {
      Index row = tile * kTile + i * 8;
      p.store(to.tile({row, 0}, 8, cols), p.load(from.tile({row, 0}, 8, cols)));
    });
  };
  p.role("make", Resource::sms(2), p.range(kSize / kTile), [&](const Tile& t) {
    copy(in, x, t.index, kSize);
    p.notify(made[t.index], p.rank());
  });
  Resource sms = Resource::sms(2).pipelined(4).staggered(s.stagger);
  p.role("multiply", sms, p.grid(c, kTile, 128), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, kTile, 128);
    if (s.place != WaitPosition::kAfterLoop) p.wait(made[t.m], 1);
    if (s.place == WaitPosition::kBeforeStore) {
      p.store(c.tile({t.row, t.col}, kTile, 128), cast(acc, DType::kBF16));
    }
    Value picked;
    if (s.picked) picked = p.load(rows.tile({t.row, 0}, kTile, 1));
    const TensorRef& from = s.place == WaitPosition::kAfterLoop ? in : x;
    p.loop(ceil_div(k, kStep), [&](const Index& i) {
      Value left = s.picked ? p.load_rows(from.tile({0, i * kStep}, kTile, kStep), picked)
                            : p.load(from.tile({t.row, i * kStep}, kTile, kStep));
      acc = dot(acc, left, p.load(b.tile({t.col, i * kStep}, 128, kStep)).T());
    });
    if (s.place == WaitPosition::kBeforeBoth || s.place == WaitPosition::kAfterLoop)
      p.wait(made[t.m], 1);
    p.store(c.tile({t.row, t.col}, kTile, 128), cast(acc, DType::kBF16));
    p.notify(stored[t.m], p.rank());
  });
  p.role("copy", Resource::sms(2), p.range(kSize / kTile), [&](const Tile& t) {
    p.wait(stored[t.index], 2);
    copy(c, out, t.index, 256);
  });
  return p.finish();
}

struct Polls {
  int producer = 0, consumer = 0;
  bool operator==(const Polls&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Polls& p) {
  return out << p.producer << " by the producer, " << p.consumer << " by the consumer";
}

std::string part(const GeneratedKernel& kernel, const std::string& from, const std::string& to) {
  std::size_t begin = kernel.source.find(from);
  return kernel.source.substr(begin, kernel.source.find(to, begin) - begin);
}

Polls polls(const GeneratedKernel& kernel) {
  auto count = [](const std::string& text) {
    int n = 0;
    for (std::size_t at = text.find("wait_acquire_sys("); at != std::string::npos; ++n) {
      at = text.find("wait_acquire_sys(", at + 1);
    }
    return n;
  };
  return {count(part(kernel, "// producer", "// consumer")),
          count(part(kernel, "// consumer", "// role 'copy'"))};
}

TEST(ElidedWaits, ASlotTellsWhatItsProducerHasWaitedFor) {
  GeneratedKernel kernel = generate(chain({}));
  EXPECT_EQ(polls(kernel), (Polls{2, 0})) << kernel.source;
  // Stores by TMA come after a fence of who makes them, which comes after a slot.
  expect_lines(part(kernel, "// consumer", "// role 'copy'"),
               {"mbarrier_wait_acquire_cta(&full", "dot_async<", "fence_proxy_async_global();",
                "wgmma_wait<0>();", "store_tma<", "add_release_sys("});
  expect_clean_build(kernel);
}

TEST(ElidedWaits, WhatComesBeforeASlotIsPolledFor) {
  EXPECT_EQ(polls(generate(chain({.place = WaitPosition::kBeforeStore}))), (Polls{2, 1}));
  // The producer has nothing to wait for.
  EXPECT_EQ(polls(generate(chain({.place = WaitPosition::kAfterLoop}))), (Polls{0, 1}));
}

TEST(ElidedWaits, AWaitBehindTheLoopIsPolledFor) {
  EXPECT_EQ(polls(generate(chain({.place = WaitPosition::kBeforeBoth}))), (Polls{2, 1}));
}

TEST(ElidedWaits, ALoopThatMayNotGoRoundTellsNothing) {
  EXPECT_EQ(polls(generate(chain({.any_steps = true}))), (Polls{2, 1}));
}

// A slot whose constants are loaded before the wait is announced before it, too.
TEST(ElidedWaits, SlotsThatAreFilledAheadTellNothing) {
  GeneratedKernel kernel = generate(chain({.picked = false}));
  expect_lines(kernel.source, {"++ahead0;"});
  EXPECT_EQ(polls(kernel), (Polls{1, 1}));
}

TEST(ElidedWaits, WarpgroupsThatAreApartPollEachForItself) {
  EXPECT_EQ(polls(generate(chain({.stagger = 2}))), (Polls{2, 1}));
}

}  // namespace
}  // namespace stretto::elided_waits_test
