// If these fail, the profile of a call's host shows time where it was not spent.
#include "stretto/base/host_phases.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr double kMs = 1e6;  // ns

void spend(int ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST(HostPhasesTest, TimeOfPhasesWithinIsTheirs) {
  HostPhases phases;
  spend(20);  // in none
  for (int i = 0; i < 2; ++i) {
    HostPhase outer("outer");
    spend(5);
    {
      HostPhase inner("inner");
      spend(10);
    }
    spend(5);
  }
  const auto spent = phases.finish();
  ASSERT_EQ(spent.size(), 2u);
  EXPECT_EQ(spent.at("outer").count, 2);
  EXPECT_EQ(spent.at("inner").count, 2);
  // The thread may be put aside, which takes longer; it takes no less.
  EXPECT_GE(spent.at("outer").ns, 20 * kMs);
  EXPECT_GE(spent.at("inner").ns, 20 * kMs);
  EXPECT_TRUE(phases.finish().empty());
}

TEST(HostPhasesTest, EveryNanosecondIsOfOnePhase) {
  const auto begin = std::chrono::steady_clock::now();
  HostPhases phases;
  {
    HostPhase outer("outer");
    for (int i = 0; i < 1000; ++i) HostPhase inner("inner");
  }
  const auto spent = phases.finish();
  const double all =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(spent.at("inner").count, 1000);
  EXPECT_GT(spent.at("outer").ns, 0);
  EXPECT_LE(spent.at("outer").ns + spent.at("inner").ns, all);
}

TEST(HostPhasesTest, ThreadsAndTimesThatNobodyMeasuresLeaveNothing) {
  { HostPhase before("before"); }
  HostPhases phases;
  std::thread([] { HostPhase other("other"); }).join();
  EXPECT_THROW(HostPhases(), UserError) << "a second of one thread";
  try {
    HostPhase thrown("thrown");
    throw std::runtime_error("out of it");
  } catch (const std::runtime_error&) {
  }
  { HostPhase after("after"); }
  const auto spent = phases.finish();
  ASSERT_EQ(spent.size(), 2u);
  EXPECT_TRUE(spent.contains("thrown") && spent.contains("after"));
  { HostPhase late("late"); }
  HostPhases again;
  EXPECT_TRUE(again.finish().empty());
}

}  // namespace
}  // namespace stretto
