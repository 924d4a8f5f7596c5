#include "stretto/base/slow_notice.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace stretto {
namespace {

TEST(SlowNotice, SaysAgainWheneverTheTimeHasDoubled) {
  std::mutex mutex;
  std::condition_variable said;
  std::vector<std::string> lines;
  auto say = [&](const std::string& line) {
    std::lock_guard lock(mutex);
    lines.push_back(line);
    said.notify_one();
  };
  {
    SlowNotice notice("proving 'ring'", std::chrono::milliseconds(1), say);
    std::unique_lock lock(mutex);
    ASSERT_TRUE(said.wait_for(lock, std::chrono::minutes(1), [&] { return lines.size() >= 3; }));
  }
  EXPECT_EQ(lines[0], "proving 'ring', 0.001 s so far");
  EXPECT_EQ(lines[1], "proving 'ring', 0.002 s so far");
  EXPECT_EQ(lines[2], "proving 'ring', 0.004 s so far");
}

// The thread that says it has nobody to tell of what goes wrong.
TEST(SlowNotice, GoesOnWhereThereIsNoMemoryToSayIt) {
  std::atomic<int> tries = 0;
  {
    SlowNotice notice("proving 'ring'", std::chrono::milliseconds(1), [&](const std::string&) {
      if (++tries < 3) throw std::bad_alloc();
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (tries < 3 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  EXPECT_GE(tries, 3);
}

// Whoever ends early waits for no clock and hears nothing.
TEST(SlowNotice, IsSilentWhereItIsOverBefore) {
  bool any = false;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    SlowNotice notice("a proof", std::chrono::hours(1), [&](const std::string&) { any = true; });
  }
  EXPECT_FALSE(any);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(10));
}

}  // namespace
}  // namespace stretto
