// Memory that locals share. If these fail, one layer's result is overwritten by another's.
#include "stretto/step/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/step/check.h"
#include "stretto/step/plan_testing.h"

namespace stretto::step {
namespace {

constexpr std::size_t kBufferBytes = kTestRows * kTestCols * 4;

TEST(StepMemory, AChainTakesThreeBuffersWhateverItsLength) {
  for (int length : {3, 8, 30}) {
    Plan plan = chain(length);
    Memory m = assign(plan);
    EXPECT_EQ(m.arena_bytes, 3 * kBufferBytes) << length;
    EXPECT_EQ(m.unshared_bytes, static_cast<std::size_t>(length + 1) * kBufferBytes);
    EXPECT_EQ(m.input_bytes, kBufferBytes);
    EXPECT_EQ(assign(plan, Sharing::kNone).arena_bytes, m.unshared_bytes);
  }
}

TEST(StepMemory, WhatOtherRanksAddressIsNotShared) {
  Plan plan = chain(8);
  const int x4 = plan.find_buffer("x4");
  Buffer& symmetric = plan.buffers[static_cast<std::size_t>(x4)];
  symmetric.symmetric = true;
  auto has_place = [&](const Memory& m) {
    return std::ranges::count_if(m.places, [&](const Place& p) { return p.buffer == x4; }) == 1;
  };
  // Of one rank there are no others.
  EXPECT_EQ(assign(plan).symmetric_bytes, 0u);
  EXPECT_TRUE(has_place(assign(plan)));
  plan.num_ranks = 2;
  EXPECT_TRUE(has_place(assign(plan))) << "ranks of other groups do not address it";
  symmetric.across_groups = true;
  EXPECT_EQ(assign(plan).symmetric_bytes, kBufferBytes);
  EXPECT_FALSE(has_place(assign(plan)));
  symmetric.across_groups = false;
  plan.group_size = 2;
  EXPECT_EQ(assign(plan).symmetric_bytes, kBufferBytes);
  EXPECT_FALSE(has_place(assign(plan)));
}

TEST(StepMemory, AnOutputIsThereAtTheEnd) {
  Plan plan = chain(8);
  plan.buffers[static_cast<std::size_t>(plan.find_buffer("x0"))].kind = BufferKind::kOutput;
  for (const Life& life : lives(plan)) {
    if (plan.buffers[static_cast<std::size_t>(life.buffer)].kind == BufferKind::kOutput) {
      EXPECT_EQ(life.last, plan.nodes.size() - 1);
    }
  }
}

// What a section reads of the one before is there when it runs again.
TEST(StepMemory, ASectionFindsTheSameWhenItRunsAgain) {
  Plan plan = chain(6);
  plan.sections = {{"body", 0, 3}, {"again", 3, plan.nodes.size()}};
  for (const Life& life : lives(plan)) {
    bool crosses = life.first < 3 && life.last >= 3;
    if (crosses) {
      EXPECT_EQ(life.last, plan.nodes.size() - 1);
    }
  }
  EXPECT_EQ(lives(plan).front().first, 0u);
}

// Straight-line plans by lot: each node writes a buffer anew from two that hold something. An
// interpreter over places, one number each, must find what the same over buffers finds.
TEST(StepMemory, SharedPlacesComputeTheSame) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  std::size_t saved = 0;
  for (int draw = 0; draw < 200; ++draw) {
    Plan plan = chain(6);
    std::size_t count = plan.buffers.size();
    std::vector<int> written;
    plan.nodes.clear();
    for (int i = 0; i < 30; ++i) {
      Node n{.name = "n" + std::to_string(i), .extents = {Size::of_extent(0)}};
      auto source = [&] { return written.empty() ? below(2) : written[random() % written.size()]; };
      int a = source(), b = source(), out = 2 + below(count - 2);
      if (out == a || out == b) continue;
      n.bindings = {{"a", a, {}}, {"b", b, {}}, {"out", out, {}}};
      written.push_back(out);
      plan.nodes.push_back(n);
    }
    plan.sections = {{"body", 0, plan.nodes.size()}};
    check(plan);
    for (Buffer& b : plan.buffers) b.shape[0] = Size::of(1 + below(kTestRows));
    Memory m = assign(plan);
    saved += m.unshared_bytes - m.arena_bytes;
    std::map<int, Place> place;
    for (const Place& p : m.places) place[p.buffer] = p;
    std::map<int, std::uint64_t> plain;
    std::vector<std::uint64_t> arena(m.arena_bytes / kPlaceAlignment);
    auto expect_kept = [&](int b) {
      if (b < 2) return;
      const Place& p = place.at(b);
      for (std::size_t at = p.offset; at < p.offset + p.bytes; at += kPlaceAlignment) {
        EXPECT_EQ(arena[at / kPlaceAlignment], plain.at(b)) << "draw " << draw;
      }
    };
    for (const Node& n : plan.nodes) {
      expect_kept(n.bindings[0].buffer);
      expect_kept(n.bindings[1].buffer);
      const Place& to = place.at(n.bindings[2].buffer);
      std::uint64_t result = random();
      plain[to.buffer] = result;
      std::fill_n(arena.begin() + static_cast<std::ptrdiff_t>(to.offset / kPlaceAlignment),
                  to.bytes / kPlaceAlignment, result);
    }
    if (int out = plan.find_buffer("out"); plain.contains(out)) expect_kept(out);
  }
  EXPECT_GT(saved, 0u);
}

}  // namespace
}  // namespace stretto::step
