// Boxes with open masks against what they are at every size: a "yes" of SizeMasks has to hold at
// each of them. If it does not, a race or a gap at some size is called proved.
#include "stretto/proof/size_masks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "stretto/base/test_seed.h"
#include "stretto/proof/overlap.h"

namespace stretto::size_masks_test {
namespace {

constexpr std::int64_t kMost = 9;  // of each of two sizes

SizeRegion all_sizes() {
  SizeAxes axes{.extents = {{.digits = {{0, 1}}}, {.digits = {{1, 1}}}}, .count = 2};
  SizeBox box;
  box.hi[0] = box.hi[1] = kMost;
  SizePoint sample{};
  sample[0] = sample[1] = kMost;
  return SizeRegion(axes, box, sample);
}

class Lot {
 public:
  explicit Lot(std::uint64_t seed) : random_(seed) {}
  std::int64_t to(std::int64_t most) { return static_cast<std::int64_t>(random_() % (most + 1)); }

  // Rows that begin at some tile, or at some share of a size, and end in a like way.
  SizeMasks::Side side(std::int64_t tile) {
    SizeForm from{.value = tile * to(5)};
    std::int64_t share = to(2);
    if (share > 0) {
      std::size_t axis = static_cast<std::size_t>(to(1));
      from.slope[axis] = share;
      from.value += share * kMost;
    }
    SizeForm end = from;
    end.value += tile;
    std::vector<SizeForm> ends = {end};
    for (std::int64_t i = to(2); i > 0; --i) ends.push_back(limit());
    return {.from = from, .ends = ends};
  }

  SizeForm limit() {
    SizeForm limit;
    std::size_t axis = static_cast<std::size_t>(to(1));
    limit.slope[axis] = 1 + to(2);
    limit.value = limit.slope[axis] * kMost + to(3);
    return limit;
  }

  // Mostly none; what is positive from some size on, or up to one.
  std::vector<SizeForm> there() {
    if (to(2) > 0) return {};
    SizeForm form;
    std::size_t axis = static_cast<std::size_t>(to(1));
    form.slope[axis] = (to(1) == 0 ? 1 : -1) * (1 + to(2));
    form.value = form.slope[axis] * (kMost - to(kMost));
    return {form};
  }

 private:
  std::mt19937_64 random_;
};

template <typename Visit>
void each_size(const Visit& visit) {
  SizePoint point{};
  for (point[0] = 0; point[0] <= kMost; ++point[0]) {
    for (point[1] = 0; point[1] <= kMost; ++point[1]) visit(point);
  }
}

TEST(SizeMasks, WhatIsSaidOfAllSizesIsSoAtEach) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  Lot lot(seed);
  SizeRegion region = all_sizes();
  int covered = 0, left_out = 0;
  for (int round = 0; round < 400; ++round) {
    SizeMasks masks(region);
    std::vector<int> numbers;
    std::int64_t tile = 1 + lot.to(3);
    bool in_order = lot.to(1) == 0;
    SizeMasks::Side column = lot.side(2);
    for (std::int64_t t = 0; t < 6; ++t) {
      std::vector<SizeMasks::Side> sides = {lot.side(tile), column};
      if (in_order) {  // tiles of one row after the other, masked alike: these may cover
        SizeForm m{.value = 2 * kMost};
        m.slope[0] = 2;
        sides[0] = {.from = {.value = t * tile}, .ends = {{.value = (t + 1) * tile}, m}};
      }
      std::vector<SizeForm> there = lot.there();
      if (in_order && round % 2 == 0) {  // where its first row is
        there = {sides[0].ends[1]};
        there[0].value -= t * tile;
        sides[0].ends.pop_back();
      }
      if (auto mask = masks.mask(sides, there, region)) numbers.push_back(masks.number(*mask));
      if (!in_order || lot.to(2) > 0) continue;
      sides[0].ends.push_back(lot.limit());  // written twice, once less of it
      if (auto mask = masks.mask(sides, there, region)) numbers.push_back(masks.number(*mask));
    }
    SizeForm whole{.value = 2 * kMost};
    whole.slope[0] = 2;
    std::vector<SizeMasks::Side> all = {{.from = {}, .ends = {whole, {.value = 6 * tile}}}, column};
    auto mask = masks.mask(all, round % 3 == 0 ? lot.there() : std::vector<SizeForm>{}, region);
    if (!mask || numbers.empty()) continue;
    int box = masks.number(*mask);

    std::set<std::pair<std::size_t, std::size_t>> meet;
    masks.for_each_meeting(numbers, numbers, [&](std::size_t i, std::size_t j) {
      meet.insert({i, j});
    });
    bool covers = masks.covers(box, numbers);
    ++(covers ? covered : left_out);
    each_size([&](const SizePoint& point) {
      std::vector<Box> boxes;
      for (int n : numbers) {
        boxes.push_back(masks.at_size(n, point));
        if (is_empty(boxes.back())) continue;
        EXPECT_EQ(intersection(masks.hull(n), boxes.back()), boxes.back());
      }
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        for (std::size_t j = 0; j < boxes.size(); ++j) {
          bool both = !is_empty(boxes[i]) && !is_empty(boxes[j]) && overlaps(boxes[i], boxes[j]);
          EXPECT_TRUE(!both || meet.count({i, j}) != 0);
        }
      }
      EXPECT_TRUE(!covers || uncovered(masks.at_size(box, point), boxes).empty());
    });
  }
  EXPECT_GT(covered, 40);
  EXPECT_GT(left_out, 40);
}

// Blocks of a share that begin within it end within it, where shares are whole blocks.
TEST(SizeMasks, WholeBlocksOfAShareLieBeforeTheNext) {
  SizeRegion region = all_sizes();
  for (std::int64_t rows : {4, 5}) {
    for (std::int64_t more : {0, 1}) {
      SizeMasks masks(region);
      SizeForm share{.value = 4 * kMost + more};
      share.slope[0] = 4;
      std::vector<int> first, next;
      for (std::int64_t b = 0; b < kMost; ++b) {
        SizeForm there = share, from = share, end = share;
        there.value -= 4 * b;
        from.value += 4 * b;
        end.value += 4 * b + rows;
        auto of_first = masks.mask({{.from = {.value = 4 * b}, .ends = {{.value = 4 * b + rows}}}},
                                   {there}, region);
        auto of_next = masks.mask({{.from = from, .ends = {end}}}, {there}, region);
        ASSERT_TRUE(of_first && of_next);
        first.push_back(masks.number(*of_first));
        next.push_back(masks.number(*of_next));
      }
      int met = 0;
      masks.for_each_meeting(first, next, [&](std::size_t, std::size_t) { ++met; });
      EXPECT_EQ(met == 0, rows == 4 && more == 0) << met << " meet: " << rows << ", " << more;
    }
  }
}

// Rows of a share that two writers store, one of them less at small sizes; or that are read at
// large sizes alone, where one writer has stored them all.
TEST(SizeMasks, RowsAreCoveredByAnyOfTheirWriters) {
  SizeRegion region = all_sizes();
  SizeForm share{.value = 4 * kMost}, less{.value = 8 * kMost - kMost}, large{.value = kMost - 2};
  share.slope[0] = 4;                     // 4 x
  less.slope[0] = 8, less.slope[1] = -1;  // 8 x - y
  large.slope[0] = 1;                     // x - 2
  for (bool twice : {false, true}) {
    for (bool only_large : {false, true}) {
      SizeMasks masks(region);
      std::vector<int> by;
      auto add = [&](const SizeForm& from, const std::vector<SizeForm>& ends) {
        auto mask = masks.mask({{.from = from, .ends = ends}}, {}, region);
        ASSERT_TRUE(mask.has_value());
        by.push_back(masks.number(*mask));
      };
      add({}, {{.value = 8}, share, less});
      add({.value = 8}, {{.value = 40}, share, less});
      if (twice) add({}, {{.value = 8}, share});
      if (twice) add({.value = 8}, {{.value = 40}, share});
      std::vector<SizeForm> there;
      if (only_large) there = {large};
      auto read = masks.mask({{.from = {}, .ends = {share}}}, there, region);
      ASSERT_TRUE(read.has_value());
      EXPECT_EQ(masks.covers(masks.number(*read), by), twice || only_large) << twice << only_large;
    }
  }
}

// What a launch relies on at every size, as where a load waits for packets.
TEST(SizeMasks, BoxesThatAlwaysMeetDoSoAtEachSize) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  Lot lot(seed);
  SizeRegion region = all_sizes();
  int always = 0, not_always = 0;
  for (int round = 0; round < 1000; ++round) {
    SizeMasks masks(region);
    std::vector<int> numbers;
    for (int i = 0; i < 2; ++i) {
      SizeForm from{.value = lot.to(3)}, rows{.value = kMost + lot.to(6)};
      rows.slope[static_cast<std::size_t>(lot.to(1))] = 1;
      std::vector<SizeMasks::Side> sides = {
          {.from = from, .ends = {{.value = from.value + 1 + lot.to(4)}, rows}}};
      auto mask = masks.mask(sides, lot.to(3) == 0 ? lot.there() : std::vector<SizeForm>{}, region);
      if (mask) numbers.push_back(masks.number(*mask));
    }
    if (numbers.size() < 2) continue;
    bool said = masks.meet_always(numbers[0], numbers[1]);
    ++(said ? always : not_always);
    each_size([&](const SizePoint& point) {
      Box a = masks.at_size(numbers[0], point), b = masks.at_size(numbers[1], point);
      EXPECT_TRUE(!said || (!is_empty(a) && !is_empty(b) && overlaps(a, b)));
    });
  }
  EXPECT_GT(always, 40);
  EXPECT_GT(not_always, 40);
}

}  // namespace
}  // namespace stretto::size_masks_test
