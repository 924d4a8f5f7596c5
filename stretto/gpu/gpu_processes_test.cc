// GPUs of a world of processes, as far as they go without a GPU: whatever is wrong on one rank must
// be heard on all, or the others wait for it. `gpu_bench processes` goes on where there are GPUs.
#include "stretto/gpu/gpu_processes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "stretto/base/test_errors.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/rank_processes_testing.h"

namespace stretto::gpu_processes_test {
namespace {

using Reports = std::vector<std::string>;

constexpr int kRanks = 3;
constexpr std::chrono::milliseconds kTimeout{20'000};

// What each rank heard, and that its world works afterwards.
Reports heard(const std::function<void(Rank&)>& body) {
  return RankProcesses(kRanks,
                       [&](const BootstrapAddress& at) {
                         World world(ProcessWorldOptions{.bootstrap = at, .timeout = kTimeout});
                         std::string text = outcome_of([&]() -> std::string {
                           body(world.local_rank());
                           return "no error";
                         });
                         world.local_rank().barrier();
                         return text;
                       })
      .wait();
}

TEST(GpuSeats, AnErrorOfOneRankIsThatOfAll) {
  for (bool users : {false, true}) {
    Reports reports = heard([&](Rank& rank) {
      GpuSeats seats(rank);
      seats.agree([&]() -> std::string {
        if (rank.index() == 1 && users) throw UserError("bad number");
        if (rank.index() == 1) throw DeviceError("no such GPU");
        return "0000:1b:00";
      });
    });
    std::string expected = users ? "UserError: rank 1: bad number" : "error: rank 1: no such GPU";
    EXPECT_EQ(reports, Reports(kRanks, expected));
  }
}

TEST(GpuSeats, TwoRanksOnOneGpuAreRefusedOnAll) {
  Reports reports = heard([](Rank& rank) {
    GpuSeats seats(rank);
    seats.agree([&] { return rank.index() == 1 ? "0000:1b:00" : "0000:2c:00"; });
    seats.require_own_devices();
  });
  for (const std::string& text : reports) {
    EXPECT_EQ(text.rfind("UserError: ranks 0 and 2 are both on the GPU at 0000:2c:00", 0), 0u)
        << text;
  }
  reports = heard([](Rank& rank) {
    GpuSeats seats(rank);
    seats.agree([&] { return std::to_string(rank.index()); });
    seats.require_own_devices();
  });
  EXPECT_EQ(reports, Reports(kRanks, "no error"));
}

TEST(GpuProcesses, WhatRanksTellEachOtherComesInTheirOrder) {
  Reports reports = heard([](Rank& rank) {
    for (std::size_t bytes : {1u, 128u, 70'000u}) {
      std::vector<std::byte> own(bytes, static_cast<std::byte>(rank.index() + 1));
      std::vector<std::vector<std::byte>> all = exchange_bytes(rank, own);
      for (int r = 0; r < rank.size(); ++r) {
        std::vector<std::byte> expected(bytes, static_cast<std::byte>(r + 1));
        if (all.at(static_cast<std::size_t>(r)) != expected) throw UserError("other bytes came");
      }
    }
    expect_user_error(
        [&] { exchange_bytes(rank, std::vector<std::byte>(rank.index() == 1 ? 2 : 1)); },
        {"what ranks tell each other"});
  });
  EXPECT_EQ(reports, Reports(kRanks, "no error"));
}

TEST(GpuProcesses, ALocalRankThatIsNoNumberIsAUserError) {
  ::setenv("LOCAL_RANK", "5", 1);
  EXPECT_EQ(local_rank_of_environment(2), 5);
  for (const char* wrong : {"", "-1", "1x", "one", "99999999999"}) {
    ::setenv("LOCAL_RANK", wrong, 1);
    expect_user_error([] { local_rank_of_environment(2); }, {"LOCAL_RANK", wrong});
  }
  ::unsetenv("LOCAL_RANK");
  EXPECT_EQ(local_rank_of_environment(2), 2);
}

TEST(GpuProcesses, WithoutADriverAllSayWhy) {
  if (cuda::has_driver()) GTEST_SKIP() << "this machine has a driver";
  for (const std::string& text : heard([](Rank& rank) { GpuWorld world(rank, {}); })) {
    EXPECT_EQ(text.rfind("error: rank 0: ", 0), 0u) << text;
    EXPECT_NE(text.find("driver"), std::string::npos) << text;
  }
}

TEST(GpuProcesses, AWorldOfThreadsIsRefused) {
  World world({.size = 1});
  expect_user_error([&] { GpuWorld gpus(world.local_rank(), {}); },
                    {"not in a world of processes"});
}

}  // namespace
}  // namespace stretto::gpu_processes_test
