// Folding and overlap against plain enumeration: a box too large hides a gap, one too small hides a
// race.
#include <gtest/gtest.h>

#include <cstdlib>
#include <algorithm>
#include <random>
#include <set>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/overlap.h"

namespace stretto::geometry_test {
namespace {

using Point = std::array<std::int64_t, 2>;
std::set<Point> points(const Box& box) {
  std::set<Point> out;
  for (std::int64_t r = box.lo[0]; r < box.hi[0]; ++r) {
    for (std::int64_t c = box.lo[1]; c < box.hi[1]; ++c) out.insert({r, c});
  }
  return out;
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t roll(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random_);
  }
  Box box() {
    Box b;
    b.hi.fill(1);
    for (std::size_t d = 0; d < 2; ++d) {
      b.lo[d] = roll(0, 7);
      b.hi[d] = b.lo[d] + roll(0, 5);
    }
    return b;
  }

 private:
  std::mt19937_64 random_;
};

TEST(Geometry, UncoveredIsExactlyTheRest) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  Dice dice(seed);
  for (int i = 0; i < 300; ++i) {
    Box box = dice.box();
    std::vector<Box> pieces(static_cast<std::size_t>(dice.roll(0, 5)));
    for (Box& p : pieces) p = dice.box();
    std::set<Point> expected = points(box), got;
    for (const Box& p : pieces) {
      for (const Point& x : points(p)) expected.erase(x);
    }
    for (const Box& rest : uncovered(box, pieces)) {
      for (const Point& x : points(rest)) EXPECT_TRUE(got.insert(x).second) << "counted twice";
    }
    EXPECT_EQ(got, expected);
  }
}

TEST(Geometry, OverlapsAreFoundOnceEach) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  Dice dice(seed);
  for (int i = 0; i < 100; ++i) {
    std::vector<Box> a(static_cast<std::size_t>(dice.roll(0, 12))), b(a.size() + 3);
    for (auto* boxes : {&a, &b}) {
      for (Box& box : *boxes) {
        do box = dice.box();
        while (is_empty(box));
      }
    }
    std::multiset<std::pair<std::size_t, std::size_t>> got, expected;
    for_each_overlap(a, b, [&](std::size_t x, std::size_t y) { got.insert({x, y}); });
    for (std::size_t x = 0; x < a.size(); ++x) {
      for (std::size_t y = 0; y < b.size(); ++y) {
        std::set<Point> common = points(intersection(a[x], b[y]));
        if (!common.empty()) expected.insert({x, y});
      }
    }
    EXPECT_EQ(got, expected);
  }
}

// Where boxes are alike or apart in some dimensions, and some that span all of one are among them.
TEST(Geometry, OverlapsOfTilesAreFoundOnceEach) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  Dice dice(seed);
  for (int i = 0; i < 100; ++i) {
    std::array<std::int64_t, kMaxTensorDims> step;
    std::int64_t odd = dice.roll(0, 4);  // of so many boxes one spans a dimension; 0: of none
    for (std::int64_t& s : step) s = dice.roll(1, 4);
    auto tile = [&] {
      Box box;
      for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
        box.lo[d] = dice.roll(0, 3) * step[d];
        box.hi[d] = box.lo[d] + step[d];
      }
      std::size_t wide = static_cast<std::size_t>(dice.roll(0, kMaxTensorDims - 1));
      if (odd > 0 && dice.roll(0, odd) == 0) {
        box.lo[wide] = 0;
        box.hi[wide] = 4 * step[wide];
      }
      return box;
    };
    std::vector<Box> a(static_cast<std::size_t>(dice.roll(5, 40))), b(a.size() + 3);
    for (auto* boxes : {&a, &b}) std::generate(boxes->begin(), boxes->end(), tile);
    std::multiset<std::pair<std::size_t, std::size_t>> got, expected;
    for_each_overlap(a, b, [&](std::size_t x, std::size_t y) { got.insert({x, y}); });
    for (std::size_t x = 0; x < a.size(); ++x) {
      for (std::size_t y = 0; y < b.size(); ++y) {
        if (!is_empty(intersection(a[x], b[y]))) expected.insert({x, y});
      }
    }
    EXPECT_EQ(got, expected);
  }
}

// A loop of loads and stores at random strides against the same accesses spelled out.
TEST(Geometry, LoopsFoldIntoExactlyTheirElements) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  Dice dice(seed);
  for (int i = 0; i < 200; ++i) {
    std::int64_t trips = dice.roll(0, 6), rows = dice.roll(1, 3), cols = dice.roll(1, 3);
    std::int64_t row0 = dice.roll(-2, 9), row_step = dice.roll(-3, 3), col_step = dice.roll(-2, 3);
    std::int64_t end = dice.roll(4, 12);
    bool divided = dice.roll(0, 3) == 0, chooses = dice.roll(0, 1) == 0;
    auto row_at = [&](std::int64_t k) { return row0 + (divided ? k / 2 : k) * row_step; };

    ProgramBuilder p("fold", 1);
    auto in = p.input("in", DType::kF32, {10, 8});
    auto out = p.buffer("out", DType::kF32, {10, 8});
    p.role("r", Resource::sms(1), p.range(1), [&](const Tile&) {
      p.loop(trips, [&](const Index& k) {
        Index row = p.let("row", (divided ? k / 2 : k) * row_step + row0);
        Slice from = in.tile({row, k * col_step}, rows, cols).until_row(end);
        Value v = p.load(from);
        if (chooses) p.when(k >= 2, [&] { v = v + v; });
        p.store(out.tile({row, k * col_step}, rows, cols).until_row(end), v);
      });
    });
    Program program = p.finish();
    InstanceGraph graph = expand(program, {});
    std::multiset<Point> written, expected;
    std::set<Point> read, expected_read;
    for (const Access& a : graph.agents[2].accesses) {
      for (const Point& x : points(graph.boxes[static_cast<std::size_t>(a.box)])) {
        a.kind == AccessKind::kRead ? (void)read.insert(x) : (void)written.insert(x);
      }
    }
    for (std::int64_t k = 0; k < trips; ++k) {
      for (std::int64_t r = row_at(k); r < row_at(k) + rows; ++r) {
        for (std::int64_t c = k * col_step; c < k * col_step + cols; ++c) {
          if (r < 0 || c < 0 || r >= std::min<std::int64_t>(10, end) || c >= 8) continue;
          expected.insert({r, c});
          expected_read.insert({r, c});
        }
      }
    }
    EXPECT_EQ(read, expected_read);
    EXPECT_EQ(written, expected) << "a write was lost or counted twice";
  }
}

// 128 iterations of a matrix product are two boxes, masked ones or not, or large programs could not
// be proved in time.
TEST(Geometry, TheMainLoopOfAProductIsOneBoxPerOperand) {
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kF32, {64, 1024});
  auto out = p.output("out", DType::kF32, {64, 8});
  p.role("r", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, 8);
    p.loop(128, [&](const Index& k) {
      Value step = p.load(a.tile({0, k * 8}, 64, 8));
      p.when(k >= 100, [&] { step = step + step; });
      acc = acc + step;
    });
    p.store(out.tile({0, 0}, 64, 8), acc);
  });
  Program program = p.finish();
  InstanceGraph graph = expand(program, {});
  ASSERT_EQ(graph.agents[2].accesses.size(), 2u);
  EXPECT_EQ(describe_access(graph, graph.agents[2].accesses[0]),
            "read of 'a' [0:64, 0:1024] on rank 0");
}

}  // namespace
}  // namespace stretto::geometry_test
