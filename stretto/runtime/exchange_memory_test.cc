// What is built over a world of processes from outside: memory of the caller's making that every
// process gets, and the news that one of them has died.
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>

#include "stretto/base/test_errors.h"
#include "stretto/runtime/processes/shared_memory.h"
#include "stretto/runtime/rank_processes_testing.h"

namespace stretto::exchange_memory_test {
namespace {

constexpr std::chrono::milliseconds kNever{60'000};

int num_descriptors() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (dir != nullptr && ::readdir(dir) != nullptr) ++count;
  if (dir != nullptr) ::closedir(dir);
  return count;
}

// Memory of GPUs is passed in this way: what arrives is the peer's, and who fails says so to all.
TEST(ExchangedMemory, ArrivesAndIsRefusedTogether) {
  auto body = [](const BootstrapAddress& at) -> std::string {
    World world(ProcessWorldOptions{.bootstrap = at, .timeout = kNever});
    Rank& rank = world.local_rank();
    std::vector<SharedMemory> all(3);
    auto make = [&] {
      SharedMemory& own = all[static_cast<std::size_t>(at.rank)];
      own = SharedMemory::create("exchanged", 64);
      own.data()[0] = static_cast<std::byte>(10 + at.rank);
      return Fd(::dup(own.fd()));
    };
    auto open = [&](int from, Fd fd) {
      all[static_cast<std::size_t>(from)] = SharedMemory::open(std::move(fd), 64);
    };
    int descriptors = num_descriptors();
    std::string failures;
    auto expect = [&](const std::function<void()>& call, const std::string& part) {
      std::string text = outcome_of([&]() -> std::string { return call(), "no error"; });
      bool refused = text.rfind("UserError: ", 0) == 0;
      if (!refused || text.find(part) == std::string::npos) failures += text + "; ";
    };
    expect([&] { rank.exchange_memory("m", 64 + at.rank / 2, make, open); }, "x 65");
    expect(
        [&] {
          rank.exchange_memory(
              "m", 64, [&] { return at.rank == 1 ? throw DeviceError("no room") : make(); }, open);
        },
        "no room");
    expect(
        [&] {
          rank.exchange_memory("m", 64, make, [&](int from, Fd fd) {
            if (at.rank == 2 && from == 0) throw DeviceError("cannot map it");
            open(from, std::move(fd));
          });
        },
        "cannot map it");
    for (int i = 0; i < 50; ++i) rank.exchange_memory("m", 64, make, open);
    for (int r = 0; r < 3; ++r) {
      if (all[static_cast<std::size_t>(r)].data()[0] == static_cast<std::byte>(10 + r)) continue;
      failures += fmt::format("memory of rank {}; ", r);
    }
    all.clear();
    int left = num_descriptors() - descriptors;
    return failures + (left == 0 ? "" : fmt::format("{} descriptors left", left));
  };
  EXPECT_EQ(RankProcesses(3, body).wait(), std::vector<std::string>(3));
}

TEST(WatchedDeaths, AreToldAfterTheFault) {
  auto body = [](const BootstrapAddress& at) -> std::string {
    World world(ProcessWorldOptions{.bootstrap = at, .timeout = kNever});
    Rank& rank = world.local_rank();
    std::atomic<int> dead{-1};
    std::atomic<bool> faulted{false};
    int token = rank.watch_deaths([&](int r) {
      faulted = rank.aborted();
      dead = r;
    });
    rank.barrier();
    if (at.rank == 1) ::raise(SIGKILL);
    while (dead < 0) ::usleep(1000);
    rank.unwatch_deaths(token);
    return fmt::format("rank {} {}", dead.load(), faulted ? "faulted" : "not faulted");
  };
  std::vector<std::string> reports = RankProcesses(3, body).wait();
  for (int r : {0, 2}) EXPECT_EQ(reports[static_cast<std::size_t>(r)], "rank 1 faulted");
  World threads({.size = 1});
  expect_user_error([&] { threads.local_rank().watch_deaths([](int) {}); },
                    {"watch_deaths", "not in a world of processes"});
}

}  // namespace
}  // namespace stretto::exchange_memory_test
