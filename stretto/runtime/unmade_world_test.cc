// A rank that dies while a world of processes is being made, at each step of it: the others must
// hear of it at once and by name, not at the deadline.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/runtime/processes/bootstrap.h"
#include "stretto/runtime/processes/mesh.h"
#include "stretto/runtime/processes/peers.h"
#include "stretto/runtime/rank_processes_testing.h"

namespace stretto::unmade_world_test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNever{120'000};  // whatever ends by it instead says so
constexpr int kSize = 4;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool has_local_socket(int pid) {
  std::ifstream file("/proc/net/unix");
  std::string name = "@stretto-" + std::to_string(pid) + "-";
  for (std::string line; std::getline(file, line);) {
    if (has(line, name)) return true;
  }
  return false;
}

void die_in(milliseconds time) {
  std::this_thread::sleep_for(time);
  ::kill(::getpid(), SIGKILL);
}

// A local socket with that name that others can connect to and nobody accepts at.
Fd deaf_listener(const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX};
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(fd.get(), kSize), 0);
  return fd;
}

// How far a rank comes before it is killed.
struct Step {
  const char* name;
  void (*die)(const BootstrapAddress&);
  bool one_is_absent = false;  // another rank never starts, so that no other step is reached
};

const Step kSteps[] = {
    {"has said who it is",
     [](const BootstrapAddress& at) {
       std::thread([] { die_in(milliseconds(300)); }).detach();
       bootstrap(at, "stretto-unmade", kNever);
     },
     true},
    {"knows all names",
     [](const BootstrapAddress& at) {
       bootstrap(at, "stretto-unmade", kNever);
       die_in(milliseconds(0));
     }},
    {"can be connected to",
     [](const BootstrapAddress& at) {
       std::string name = "stretto-unmade-" + std::to_string(::getpid());
       Fd listener = deaf_listener(name);
       bootstrap(at, name, kNever);
       die_in(milliseconds(100));
     }},
    {"is connected to all",
     [](const BootstrapAddress& at) {
       std::vector<Fd> sockets = connect_peers(at, kNever);
       die_in(milliseconds(0));
     }},
    {"hears its peers",
     [](const BootstrapAddress& at) {
       Peers peers(at.rank, connect_peers(at, kNever));
       die_in(milliseconds(100));
     }},
};

std::vector<std::string> reports_of(const Step& step, int victim, const std::vector<int>& absent) {
  RankProcesses processes(
      kSize,
      [&](const BootstrapAddress& at) -> std::string {
        if (at.rank == victim) step.die(at);
        World world(ProcessWorldOptions{.bootstrap = at, .timeout = kNever});
        return "made";
      },
      absent);
  std::vector<int> pids;
  for (int r = 0; r < kSize; ++r) pids.push_back(processes.pid(r));
  std::vector<std::string> reports = processes.wait();
  for (int pid : pids) EXPECT_FALSE(has_local_socket(pid));
  return reports;
}

class UnmadeWorld : public testing::TestWithParam<std::tuple<int, int>> {};

// A job whose process is killed as it starts must end, not stand there for the timeout.
TEST_P(UnmadeWorld, TheOthersHearAtOnceWhoDied) {
  auto [index, victim] = GetParam();
  const Step& step = kSteps[index];
  int shm = num_shared(), descriptors = num_entries("/proc/self/fd");
  std::vector<int> absent;
  if (step.one_is_absent) absent.push_back(victim == kSize - 1 ? kSize - 2 : kSize - 1);
  std::vector<std::string> reports = reports_of(step, victim, absent);
  std::string name = "rank " + std::to_string(victim);
  for (int r = 0; r < kSize; ++r) {
    if (r == victim || absent == std::vector<int>{r}) continue;
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_TRUE(has(report, "Fault: ") && (has(report, name + " ended while the world was being") ||
                                           has(report, name + " died")))
        << "rank " << r << ": " << report;
  }
  EXPECT_EQ(num_shared(), shm);
  EXPECT_EQ(num_entries("/proc/self/fd"), descriptors);
}

INSTANTIATE_TEST_SUITE_P(Steps, UnmadeWorld,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kSteps))),
                                          testing::Values(0, 1, 2, kSize - 1)),
                         [](const auto& info) {
                           std::string name = kSteps[std::get<0>(info.param)].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name + "_rank_" + std::to_string(std::get<1>(info.param));
                         });

// Who may have few descriptors (ulimit -n) learns that these are missing, whether one rank lacks
// them or all, and whether for the world or for its memory.
TEST(UnmadeWorldOfFewDescriptors, SaysWhatIsMissing) {
  constexpr int kRanks = 8;
  constexpr milliseconds kSoon{1000};  // of those to whom nobody can say it
  int made = 0, refused = 0;
  for (int limited : {0, 5, kRanks}) {
    for (int more = 1; more < 44; more += 6) {
      SCOPED_TRACE(testing::Message() << "rank " << limited << ", " << more << " descriptors");
      RankProcesses processes(kRanks, [&](const BootstrapAddress& at) -> std::string {
        if (limited == at.rank || limited == kRanks) {
          auto most = static_cast<rlim_t>(num_entries("/proc/self/fd") + more);
          rlimit few{.rlim_cur = most, .rlim_max = most};
          ::setrlimit(RLIMIT_NOFILE, &few);
        }
        World world(ProcessWorldOptions{.bootstrap = at, .timeout = kSoon});
        for (const char* name : {"first", "second"}) {
          world.local_rank().allocate(name, DType::kF32, 100);
        }
        world.local_rank().barrier();
        return "made";
      });
      std::vector<std::string> reports = processes.wait();
      std::string all;
      for (const std::string& report : reports) all += report + "\n";
      EXPECT_FALSE(has(all, "late")) << all;
      bool is_made = std::ranges::all_of(reports, [](const auto& r) { return r == "made"; });
      EXPECT_TRUE(is_made || has(all, "UserError: no descriptor left for") ||
                  has(all, "Too many open files"))
          << all;
      (is_made ? made : refused) += 1;
    }
  }
  EXPECT_GT(made, 0);
  EXPECT_GT(refused, 3);
}

// Rank 0 before its first word: whether it comes late or never, nobody can tell until the deadline,
// but then each says who is missing and what came of looking for it.
struct Silence {
  const char* name;
  void (*fall_silent)(const BootstrapAddress&);  // of rank 0, which listens
  const char* seen;
  bool stays = false;
};

const Silence kSilences[] = {
    {"is killed at once", [](const BootstrapAddress&) { die_in(milliseconds(0)); },
     "nobody listens there (Connection refused)"},
    {"is killed with connections waiting",
     [](const BootstrapAddress&) { die_in(milliseconds(300)); },
     "closed without a word of it, now nobody listens there (Connection refused)"},
    {"is stopped", [](const BootstrapAddress&) { ::kill(::getpid(), SIGSTOP); },
     "connected, but nothing was said", true},
};

class SilentRankZero : public testing::TestWithParam<int> {};

TEST_P(SilentRankZero, IsNamedAtTheDeadlineWithWhatWasSeen) {
  const Silence& silence = kSilences[GetParam()];
  RankProcesses processes(kSize, [&](const BootstrapAddress& at) -> std::string {
    if (at.rank == 0) silence.fall_silent(at);
    World world(ProcessWorldOptions{.bootstrap = at, .timeout = milliseconds(1500)});
    return "made";
  });
  if (silence.stays) {
    for (int r = 1; r < kSize; ++r) processes.wait_for(r);
    processes.kill(0);
  }
  std::vector<std::string> reports = processes.wait();
  for (int r = 1; r < kSize; ++r) {
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_TRUE(has(report, "Fault: ") && has(report, "rank 0 did not answer at 127.0.0.1:") &&
                has(report, "within 1500 ms") && has(report, silence.seen))
        << "rank " << r << ": " << report;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, SilentRankZero,
                         testing::Range(0, static_cast<int>(std::size(kSilences))),
                         [](const auto& info) {
                           std::string name = kSilences[info.param].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// Whoever has said who it is is missed at once, at whatever instruction it ends.
TEST(UnmadeWorldAtRandom, ADeathAtAnyTimeIsHeardAtOnceUnlessNobodyKnewTheRank) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  int rounds = std::getenv("STRETTO_SOAK") != nullptr ? 500 : 20;
  for (int round = 0; round < rounds; ++round) {
    auto victim = static_cast<int>(random() % kSize);
    auto after = std::chrono::microseconds(random() % 20'000);
    RankProcesses processes(kSize, [](const BootstrapAddress& at) -> std::string {
      World world(ProcessWorldOptions{.bootstrap = at, .timeout = milliseconds(1500)});
      return "made";
    });
    std::this_thread::sleep_for(after);
    processes.kill(victim);
    for (const std::string& report : processes.wait()) {
      bool knew = has(report, "did not go on") || has(report, "did not connect") ||
                  has(report, "finish 'world'");
      EXPECT_FALSE(knew) << "rank " << victim << " after " << after.count() << " us: " << report;
    }
  }
}

}  // namespace
}  // namespace stretto::unmade_world_test
