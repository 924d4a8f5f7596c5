// What only worlds of processes can get wrong: finding each other, dying, leaving things behind.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <random>
#include <set>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/processes/shared_memory.h"
#include "stretto/runtime/rank_processes_testing.h"

namespace stretto::process_world_test {
namespace {

using std::chrono::milliseconds;
using Reports = std::vector<std::string>;

// Of waits that end for another reason; whatever ends by it instead says so.
constexpr milliseconds kNever{120'000};

bool soak() { return std::getenv("STRETTO_SOAK") != nullptr; }

// Lines of a file of /proc with that text.
int num_lines(const char* path, const std::string& text) {
  std::ifstream file(path);
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find(text) != std::string::npos;
  return count;
}

World world_at(const BootstrapAddress& at, milliseconds timeout) {
  return World(ProcessWorldOptions{.bootstrap = at, .timeout = timeout});
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Cluster jobs fail here most: the message must say which process to look at.
TEST(ProcessWorld, AMissingRankIsNamedToAllThatCame) {
  auto body = [](const BootstrapAddress& at) { return world_at(at, milliseconds(1500)), ""; };
  Reports reports = RankProcesses(4, body, {2}).wait();
  for (int r : {0, 1, 3}) {
    EXPECT_TRUE(has(reports[r], "Fault: ") && has(reports[r], "rank 2 did not come within 1500 ms"))
        << reports[r];
  }
  reports = RankProcesses(4, body, {1, 3}).wait();
  for (int r : {0, 2}) EXPECT_TRUE(has(reports[r], "ranks 1, 3 did not come")) << reports[r];
  reports = RankProcesses(3, body, {0}).wait();
  for (int r : {1, 2}) EXPECT_TRUE(has(reports[r], "rank 0 did not answer at")) << reports[r];
}

TEST(ProcessWorld, ProcessesThatDisagreeAboutTheWorldAllHearWhy) {
  auto with = [](std::function<void(BootstrapAddress&)> change) {
    return RankProcesses(3,
                         [&](BootstrapAddress at) {
                           change(at);
                           return world_at(at, milliseconds(700)), "made";
                         })
        .wait();
  };
  Reports reports = with([](BootstrapAddress& at) { at.size = at.rank == 1 ? 4 : 3; });
  EXPECT_EQ(reports[0],
            "UserError: world size differs between ranks: rank 0 says 3, rank 1 says 4");
  EXPECT_EQ(reports[1], reports[0]);
  reports = with([](BootstrapAddress& at) { at.rank = std::min(at.rank, 1); });
  EXPECT_EQ(reports[0], "UserError: two processes claim to be rank 1");
  // The third has not been missed by the others: it is the one that is too many.
  EXPECT_TRUE(reports[1] == reports[0] || reports[2] == reports[0]);
  reports = with([](BootstrapAddress& at) { at.job = at.rank == 2 ? "other" : "this"; });
  EXPECT_TRUE(has(reports[2], "UserError: another job's world is being made")) << reports[2];
  EXPECT_TRUE(has(reports[0], "rank 2 did not come")) << reports[0];
}

TEST(ProcessWorld, RefusesBootstrapAddressesThatMakeNoSense) {
  auto make = [](BootstrapAddress at) { return [=] { world_at(at, milliseconds(100)); }; };
  expect_user_error(make({.rank = 3, .size = 3, .port = 9}), {"rank 3"});
  expect_user_error(make({.rank = 0, .size = 65, .port = 9}), {"65", "1 to 64"});
  expect_user_error(make({.rank = 0, .size = 2, .port = 0}), {"port 0"});
  expect_user_error(make({.rank = 0, .size = 2, .address = "no such host\n", .port = 9}),
                    {"no such host\\x0a"});
  expect_user_error(make({.rank = 0, .size = 2, .address = "192.0.2.1", .port = 9}),
                    {"cannot listen at 192.0.2.1:9"});
}

// A port scanner or another program's client must not keep a job from starting.
TEST(ProcessWorld, StrangersAtThePortAreTurnedAway) {
  RankProcesses processes(3, [](const BootstrapAddress& at) -> std::string {
    if (at.rank == 1) {
      std::vector<Fd> strangers;
      for (std::string words : {"", "GET / HTTP/1.1\r\n\r\n", "stretto", "stretto\nhalf"}) {
        strangers.push_back(connect_tcp(at, deadline_in(kNever)));
        send_all(strangers.back().get(), words.data(), words.size(), deadline_in(kNever));
      }
      World world = world_at(at, kNever);
      world.local_rank().barrier();
      return "";
    }
    World world = world_at(at, kNever);
    world.local_rank().barrier();
    return "";
  });
  EXPECT_EQ(processes.wait(), Reports(3));
}

TEST(ProcessWorld, WhoeverListensThereInsteadOfRankZeroIsToldApart) {
  int port = 0;
  Fd listener = listen_anywhere(&port);
  std::thread stranger([&] {
    pollfd ready{.fd = listener.get(), .events = POLLIN};
    ::poll(&ready, 1, 10'000);
    Fd guest(::accept(listener.get(), nullptr, nullptr));
    send_all(guest.get(), "220 mail ready\r\n", 16, deadline_in(kNever));
    char byte;
    while (::recv(guest.get(), &byte, 1, 0) > 0) {
    }
  });
  expect_user_error([&] { world_at({.rank = 1, .size = 2, .port = port}, milliseconds(5000)); },
                    {"is not rank 0 of a stretto world"});
  stranger.join();
}

// The order of all that a rank does in the tests of death.
void work(Rank& rank) {
  SignalBlock signals = rank.allocate_signals("turn", 1);
  int next = (rank.index() + 1) % rank.size();
  for (std::uint64_t turn = 1;; ++turn) {
    SymmetricBuffer buffer = rank.allocate("memory", DType::kF32, 1000);
    signals.at[next][0].value.fetch_add(1, std::memory_order_release);
    rank.notify_changed(next);
    const SignalCounter& own = signals.at[rank.index()][0];
    for (int polls = 0; own.value.load(std::memory_order_acquire) < turn; ++polls) {
      if (rank.aborted()) rank.throw_fault();
      rank.pause(polls);
    }
    rank.release(buffer);
    if (turn % 8 == 0) rank.split({rank.index(), rank.index() ^ 1});
    if (turn % 3 == 0) rank.barrier();
  }
}

// A process killed by the machine (out of memory, a scheduler) must not hang the job, wherever it
// was, nor leave anything behind. What the others say is not that a deadline has passed.
TEST(ProcessWorld, AKilledRankIsAFaultOnAllOthersAndNothingIsLeftBehind) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int shm_before = num_shared();
  int fds_before = num_entries("/proc/self/fd");
  int rounds = soak() ? 200 : 10;
  for (int round = 0; round < rounds; ++round) {
    int victim = static_cast<int>(random() % 4);
    auto after = std::chrono::microseconds(random() % 250'000);
    SCOPED_TRACE(testing::Message() << "round " << round << ", rank " << victim << " after "
                                    << after.count() << " us");
    int made[2];  // a byte of each rank whose world is made: before that, unmade_world_test.cc
    ASSERT_EQ(::pipe(made), 0);
    RankProcesses processes(4, [&](const BootstrapAddress& at) -> std::string {
      World world = world_at(at, kNever);
      if (::write(made[1], "m", 1) != 1) return "no pipe";
      world.run(work);
      return "went on";
    });
    ::close(made[1]);
    int pid = processes.pid(victim);
    char byte;
    for (int r = 0; r < 4; ++r) EXPECT_EQ(::read(made[0], &byte, 1), 1);
    ::close(made[0]);
    std::this_thread::sleep_for(after);
    processes.kill(victim);
    Reports reports = processes.wait();
    for (int r = 0; r < 4; ++r) {
      if (r == victim) continue;
      const std::string& report = reports[static_cast<std::size_t>(r)];
      EXPECT_TRUE(has(report, "Fault: ")) << r << ": " << report;
      std::string name = "rank " + std::to_string(victim);
      EXPECT_TRUE(has(report, name + " died") || has(report, name + " ended"))
          << r << ": " << report;
    }
    EXPECT_EQ(num_lines("/proc/net/unix", "@stretto-" + std::to_string(pid) + "-"), 0);
  }
  EXPECT_EQ(num_shared(), shm_before);
  EXPECT_EQ(num_entries("/proc/self/fd"), fds_before);
}

// Ranks start at different times: who comes after a death must not be told that rank 0 is missing.
TEST(ProcessWorld, ARankThatComesAfterADeathHearsWhoDied) {
  constexpr milliseconds kToSayWhoItIs{1000};  // a few milliseconds' work
  int lives[2];                                // its end is seen when rank 1 is gone
  ASSERT_EQ(::pipe(lives), 0);
  RankProcesses processes(4, [&](const BootstrapAddress& at) -> std::string {
    if (at.rank != 1) ::close(lives[1]);
    char byte;
    if (at.rank == 3 && ::read(lives[0], &byte, 1) != 0) return "no pipe";
    if (at.rank == 1) {
      std::thread([=] {
        std::this_thread::sleep_for(kToSayWhoItIs);
        ::_exit(0);
      }).detach();
    }
    return world_at(at, kNever), "made";
  });
  ::close(lives[0]);
  ::close(lives[1]);
  Reports reports = processes.wait();
  for (int r : {0, 2, 3}) {
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_TRUE(has(report, "Fault: ") && has(report, "rank 1 ended")) << r << ": " << report;
  }
}

TEST(ProcessWorld, ADeathIsNoticedAlsoWhereAChildHoldsTheSockets) {
  int going[2];
  ASSERT_EQ(::pipe(going), 0);
  RankProcesses processes(3, [&](const BootstrapAddress& at) -> std::string {
    World world = world_at(at, kNever);
    Rank& rank = world.local_rank();
    SymmetricBuffer child = rank.allocate("child", DType::kI32, 1);
    if (at.rank == 1) {
      int pid = ::fork();
      if (pid == 0) {
        ::close(going[1]);
        char byte;
        static_cast<void>(!::read(going[0], &byte, 1));  // until all others are gone
        ::_exit(0);
      }
      for (int r : {0, 2}) *child.on<std::int32_t>(r) = pid;
    }
    rank.barrier();
    if (at.rank == 1) ::_exit(0);
    std::string text = outcome_of([&] { return rank.barrier(), "went on"; });
    bool holds = ::kill(*child.on<std::int32_t>(at.rank), 0) == 0;
    // It stays so, and says so.
    std::string again = outcome_of([&] { return world.recover(), "recovered"; });
    return has(again, "Fault: ") && has(again, "rank 1 is gone") && holds ? text
                                                                          : again + " / " + text;
  });
  ::close(going[0]);
  for (int r : {0, 2}) processes.wait_for(r);
  ::close(going[1]);
  Reports reports = processes.wait();
  for (int r : {0, 2}) {
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_TRUE(report.starts_with("Fault: ") && has(report, "rank 1 died: process")) << report;
    EXPECT_FALSE(has(report, " / ")) << report;
  }
}

// A server must be able to go on after a fault that all have survived.
TEST(ProcessWorld, RecoversTogetherWithAllSignalsZero) {
  RankProcesses processes(3, [](const BootstrapAddress& at) -> std::string {
    World world = world_at(at, kNever);
    Rank& rank = world.local_rank();
    SignalBlock signals = rank.allocate_signals("s", 3);
    int restarts = 0;
    rank.on_recover([&] { ++restarts; });
    for (int round = 0; round < 5; ++round) {
      for (SignalCounter* counter : signals.at) counter[at.rank].value.fetch_add(1);
      std::string text = outcome_of([&] {
        rank.barrier();
        if (rank.index() == round % 3) rank.raise_fault({.program = "p", .reason = "on purpose"});
        return rank.allocate("half-finished", DType::kF32, 4), "";
      });
      if (!has(text, "on purpose")) return text;
      world.recover();
      for (std::size_t i = 0; i < 3; ++i) {
        if (signals.at[at.rank][i].value.load() != 0) return "a signal is not zero";
      }
      if (world.faulted() || restarts != round + 1) return "still faulted";
      rank.barrier();
      rank.release(rank.allocate("again", DType::kF32, 4));
    }
    return "";
  });
  EXPECT_EQ(processes.wait(), Reports(3));
}

TEST(ProcessWorld, RecoveryThatARankDoesNotComeToIsAFaultNamingIt) {
  RankProcesses processes(3, [](const BootstrapAddress& at) -> std::string {
    World world = world_at(at, milliseconds(2000));
    outcome_of([&] { return world.local_rank().raise_fault({.reason = "on purpose"}), ""; });
    if (at.rank == 2) return std::this_thread::sleep_for(milliseconds(2600)), "";
    return outcome_of([&] { return world.recover(), "recovered"; });
  });
  Reports reports = processes.wait();
  for (int r : {0, 1})
    EXPECT_TRUE(has(reports[r], "rank 2 did not come to recover") ||
                has(reports[r], "rank 2 is gone"))
        << reports[r];
}

TEST(ProcessWorld, UseWhereItCannotWorkIsAUserErrorAndTheWorldGoesOn) {
  RankProcesses processes(2, [](const BootstrapAddress& at) -> std::string {
    World world = world_at(at, kNever);
    Rank& rank = world.local_rank();
    std::string text = outcome_of([&] { return world.rank(1 - at.rank), ""; });
    if (!has(text, "UserError") || !has(text, "not one of this process")) return text;
    // In a child: refused, and its end is not the parent's.
    int ends[2];
    if (::pipe(ends) != 0) return "no pipe";
    if (::fork() == 0) {
      std::string refused = outcome_of([&] { return rank.barrier(), ""; });
      refused += outcome_of([&] { return world.run([](Rank&) {}), ""; });
      static_cast<void>(!::write(ends[1], refused.data(), refused.size()));
      world.~World();
      ::_exit(0);
    }
    ::close(ends[1]);
    text.clear();
    char byte;
    while (::read(ends[0], &byte, 1) == 1) text += byte;
    int twice = 0;
    for (std::size_t i = 0; (i = text.find("a child of fork() cannot", i)) != std::string::npos;
         ++i) {
      ++twice;
    }
    if (twice != 2) return "in a child: " + text;
    // Two threads of rank 0, while rank 1 does not come: one is refused, the other waits.
    SignalBlock refused = rank.allocate_signals("refused", 1);
    if (at.rank == 0) {
      auto barrier = [&] {
        std::string said = outcome_of([&] { return rank.barrier(), ""; });
        if (!said.empty()) refused.at[1][0].value.fetch_add(1);
        return said;
      };
      std::string other;
      std::thread thread([&] { other = barrier(); });
      text = barrier();
      thread.join();
      if (text.empty() == other.empty() || !has(text + other, "of another thread")) {
        return "two threads: '" + text + "' and '" + other + "'";
      }
    } else {
      while (refused.at[1][0].value.load() == 0) std::this_thread::sleep_for(milliseconds(1));
      rank.barrier();
    }
    SymmetricBuffer buffer = rank.allocate("after", DType::kF32, 4);
    rank.barrier();
    world.finalise();
    world.finalise();
    rank.release(buffer);
    text = outcome_of([&] { return rank.barrier(), ""; });
    return text == "UserError: the world has been finalised" ? "" : text;
  });
  EXPECT_EQ(processes.wait(), Reports(2));
}

// A member's death concerns the groups it is in.
TEST(ProcessWorld, ASubWorldWithoutTheDeadRankGoesOn) {
  RankProcesses processes(4, [](const BootstrapAddress& at) -> std::string {
    World world = world_at(at, kNever);
    Rank& rank = world.local_rank();
    std::shared_ptr<Rank> pair = rank.split({at.rank & ~1, at.rank | 1});
    rank.barrier();
    if (at.rank == 3) ::_exit(0);
    std::string text = outcome_of([&] { return rank.barrier(), "went on"; });
    if (!has(text, "rank 3 died")) return text;
    text = outcome_of([&] {
      for (int i = 0; i < 20; ++i) pair->release(pair->allocate("more", DType::kF32, 64));
      return pair->barrier(), "went on";
    });
    if (at.rank == 2) return has(text, "rank 1 died") ? "" : text;
    return text == "went on" ? "" : text;
  });
  EXPECT_EQ(processes.wait(), Reports(4));
}

TEST(ProcessWorld, ManyWorldsOneAfterTheOtherLeakNothing) {
  RankProcesses processes(3, [](const BootstrapAddress& at) -> std::string {
    auto cycle = [&] {
      World world = world_at(at, kNever);
      Rank& rank = world.local_rank();
      rank.allocate("kept until the end", DType::kF32, 100'000);
      rank.release(rank.allocate("released", DType::kF32, 1000));
      std::shared_ptr<Rank> sub = rank.split({0, 1, 2});
      sub->allocate_signals("of the sub-world", 5);
      sub->barrier();
    };
    auto in_use = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
    auto state = [&] {
      return std::vector<int>{num_entries("/proc/self/fd"),
                              num_lines("/proc/self/maps", "stretto "),
                              num_entries("/proc/self/task")};
    };
    for (int i = 0; i < 5; ++i) cycle();
    std::vector<int> before = state();
    std::size_t bytes_before = in_use();
    for (int i = 0; i < (soak() ? 1000 : 50); ++i) cycle();
    std::vector<int> after = state();
    if (before[1] != 0) return "mappings of worlds that are gone";
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (after[i] != before[i]) {
        return "kind " + std::to_string(i) + ": " + std::to_string(before[i]) + " -> " +
               std::to_string(after[i]);
      }
    }
    return in_use() > bytes_before + 100'000 ? "memory grows" : "";
  });
  EXPECT_EQ(processes.wait(std::chrono::seconds(soak() ? 600 : 60)), Reports(3));
}

class Environment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                             "STRETTO_MASTER_PORT", "STRETTO_LISTENER", "TORCHELASTIC_RUN_ID"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
};

TEST_F(Environment, IsReadAsTorchrunSetsIt) {
  EXPECT_FALSE(bootstrap_address_of_environment().has_value());
  set("RANK", "2");
  expect_user_error([] { bootstrap_address_of_environment(); }, {"WORLD_SIZE is not set"});
  set("WORLD_SIZE", "4");
  expect_user_error([] { bootstrap_address_of_environment(); }, {"MASTER_PORT is not set"});
  set("MASTER_ADDR", "localhost");
  set("MASTER_PORT", "29500");
  set("TORCHELASTIC_RUN_ID", "none");
  BootstrapAddress at = *bootstrap_address_of_environment();
  EXPECT_EQ(at.rank, 2);
  EXPECT_EQ(at.size, 4);
  EXPECT_EQ(at.address, "localhost");
  EXPECT_EQ(at.port, 31217);
  EXPECT_EQ(at.listener, -1);
  EXPECT_EQ(at.job, "none");
  set("STRETTO_MASTER_PORT", "4711");
  EXPECT_EQ(bootstrap_address_of_environment()->port, 4711);
  for (const char* bad : {"4", "-1", "two", "1x", "99999999999999"}) {
    set("RANK", bad);
    expect_user_error([] { bootstrap_address_of_environment(); }, {"RANK is '", bad});
  }
}

TEST_F(Environment, DerivedPortsArePortsAndDiffer) {
  std::set<int> ports;
  for (int port = 1024; port <= 65535; ++port) {
    int derived = derived_port(port);
    EXPECT_TRUE(derived >= 1024 && derived <= 65535 && derived != port);
    ports.insert(derived);
  }
  EXPECT_EQ(ports.size(), 64512u);
}

// torchrun's own store sits at MASTER_PORT meanwhile.
TEST_F(Environment, AWorldComesTogetherFromItAlone) {
  int store_port = 0;
  Fd store = listen_anywhere(&store_port);
  RankProcesses processes(3, [&](const BootstrapAddress& at) -> std::string {
    set("RANK", std::to_string(at.rank));
    set("WORLD_SIZE", "3");
    set("MASTER_ADDR", "localhost");
    set("MASTER_PORT", std::to_string(store_port));
    World world = world_at(*bootstrap_address_of_environment(), kNever);
    world.local_rank().barrier();
    return "";
  });
  EXPECT_EQ(processes.wait(), Reports(3));
}

TEST(SharedMemory, CannotShrinkUnderOthersAndIsCheckedOnArrival) {
  SharedMemory memory = SharedMemory::create("test", 10'000);
  EXPECT_NE(::ftruncate(memory.fd(), 1), 0);
  EXPECT_NE(::ftruncate(memory.fd(), 100'000), 0);
  EXPECT_THROW(SharedMemory::open(Fd(::dup(memory.fd())), 9'999), InternalError);
  SharedMemory same = SharedMemory::open(Fd(::dup(memory.fd())), 10'000);
  same.data()[9'999] = std::byte{7};
  EXPECT_EQ(memory.data()[9'999], std::byte{7});
  expect_user_error([] { SharedMemory::create("test", std::size_t{1} << 60); }, {"out of memory"});
}

}  // namespace
}  // namespace stretto::process_world_test
