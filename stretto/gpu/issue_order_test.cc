// Ranks that launch different instances are told, one that is only slower is not.
#include "stretto/gpu/issue_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "stretto/base/test_seed.h"

namespace stretto::issue_order_test {
namespace {

TEST(IssueOrder, TheSameOrderAtAnySpeed) {
  IssueOrder order(2);
  for (int i = 0; i < 500; ++i) ASSERT_FALSE(order.launch(0, i % 7));
  for (int i = 0; i < 700; ++i) ASSERT_FALSE(order.launch(1, i % 7));
  for (int i = 500; i < 700; ++i) ASSERT_FALSE(order.launch(0, i % 7));
}

TEST(IssueOrder, AClashNamesTheOtherAndMayBeMended) {
  IssueOrder order(3);
  order.launch(2, 4);
  order.launch(2, 5);
  EXPECT_FALSE(order.launch(0, 4));
  auto clash = order.launch(0, 6);
  ASSERT_TRUE(clash);
  EXPECT_EQ(clash->rank, 2);
  EXPECT_EQ(clash->instance, 5);
  EXPECT_EQ(clash->place, 1u);
  EXPECT_FALSE(order.launch(0, 5));
  EXPECT_TRUE(order.launch(1, 5));
  order.clear();
  EXPECT_FALSE(order.launch(1, 5));
  EXPECT_TRUE(order.launch(2, 4));
}

TEST(IssueOrder, ARankFarBehindIsNotCompared) {
  IssueOrder order(2);
  for (std::uint32_t i = 0; i <= IssueOrder::kWindow; ++i) order.launch(0, 1);
  EXPECT_FALSE(order.launch(1, 2)) << "its place has come round again";
  EXPECT_TRUE(order.launch(1, 2)) << "this one has not";
}

TEST(IssueOrder, ThreadsThatAgreeNeverClash) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  constexpr int kRanks = 4, kLaunches = 200'000;
  IssueOrder order(kRanks);
  std::atomic<int> clashes = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      std::mt19937 random(static_cast<std::uint32_t>(seed));
      for (int i = 0; i < kLaunches; ++i) {
        clashes += order.launch(r, static_cast<int>(random() % 5)).has_value();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(clashes, 0);
}

}  // namespace
}  // namespace stretto::issue_order_test
