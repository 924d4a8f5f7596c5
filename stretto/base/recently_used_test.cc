// Launches that come again are found prepared. If this fails, they are encoded anew each time, or
// one is taken for another.
#include "stretto/base/recently_used.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>

#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

TEST(RecentlyUsed, KeepsWhatAListInOrderOfUseWouldKeep) {
  std::mt19937_64 random(test_seed());
  constexpr std::size_t kMost = 4;
  RecentlyUsed<std::unique_ptr<int>, kMost> kept;
  std::list<int> expected;  // the last used first
  int found = 0, evicted = 0;
  for (int step = 0; step < 5000; ++step) {
    const int wanted = std::uniform_int_distribution(0, 6)(random);
    if (random() % 50 == 0) {
      kept.erase_if([&](const auto& i) { return *i == wanted; });
      expected.remove(wanted);
    }
    auto* got = kept.find([&](const auto& i) { return *i == wanted; });
    auto known = std::find(expected.begin(), expected.end(), wanted);
    ASSERT_EQ(got != nullptr, known != expected.end()) << "step " << step;
    if (known != expected.end()) {
      EXPECT_EQ(**got, wanted);
      expected.splice(expected.begin(), expected, known);
      ++found;
      continue;
    }
    EXPECT_EQ(*kept.keep(std::make_unique<int>(wanted)), wanted);
    expected.push_front(wanted);
    if (expected.size() > kMost) {
      expected.pop_back();
      ++evicted;
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(evicted, 500);
}

}  // namespace
}  // namespace stretto
