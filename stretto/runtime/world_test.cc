#include "stretto/runtime/world.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>

#include "stretto/base/interrupts.h"
#include "stretto/base/log.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/recorder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace stretto::world_test {
namespace {

using std::chrono::milliseconds;

// Longer than any test may take: a fault that needs this deadline to come has not come.
constexpr milliseconds kNever{60'000};
// A deadline that a test waits out.
constexpr milliseconds kSoon{600};  // more than a rank that is not late takes on a busy machine

void wait_for(Rank& rank, const SignalCounter& counter, std::uint64_t at_least) {
  for (int polls = 0; counter.value.load(std::memory_order_acquire) < at_least; ++polls) {
    if (rank.aborted()) rank.throw_fault();
    rank.pause(polls);
  }
}

// Runs and returns what each rank reported: the Fault that its body ended with.
std::vector<FaultRecord> faults_of(World& world, const std::function<void(Rank&)>& body) {
  std::vector<FaultRecord> records(static_cast<std::size_t>(world.size()));
  try {
    world.run([&](Rank& rank) {
      try {
        body(rank);
      } catch (const Fault& fault) {
        records[static_cast<std::size_t>(rank.index())] = fault.record();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return records;
}

TEST(World, RefusesSizesAndTimeoutsThatMakeNoSense) {
  for (int size : {0, -1, 65, 1000}) {
    expect_user_error([&] { World world({.size = size}); }, {std::to_string(size), "1 to 64"});
  }
  expect_user_error([] { World world({.size = 2, .timeout = milliseconds(0)}); }, {"timeout"});
}

TEST(World, IsCreatedAndDestroyedManyTimesAlsoBesideOthers) {
  World other({.size = 2, .timeout = kNever});
  for (int i = 0; i < 100; ++i) {
    World world({.size = 1 + i % 5, .timeout = kNever});
    auto body = [&](Rank& rank) { rank.allocate("kept until the end", DType::kF32, 100); };
    world.run(body);
    world.run(body);
    if (i % 10 == 0) other.run([&](Rank& rank) { rank.barrier(); });
  }
}

TEST(World, RunsAndRecoversOneAtATime) {
  World world({.size = 2, .timeout = kNever});
  expect_user_error([&] { world.run([&](Rank&) { world.run([](Rank&) {}); }); }, {"running"});
  world.recover();
  expect_user_error([&] { world.run([&](Rank&) { world.recover(); }); }, {"running"});
}

// An instance made in one run is launched and destroyed in later ones.
TEST(World, KeepsTheSameRankObjectsOverRuns) {
  World world({.size = 3, .timeout = kNever});
  std::vector<Rank*> first(3), second(3);
  world.run([&](Rank& rank) { first[static_cast<std::size_t>(rank.index())] = &rank; });
  world.run([&](Rank& rank) { second[static_cast<std::size_t>(rank.index())] = &rank; });
  EXPECT_EQ(first, second);
}

TEST(Collective, ReleaseGivesTheMemoryBackWithTheLastRank) {
  World world({.size = 4, .timeout = kNever});
  auto in_use = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  std::vector<SymmetricBuffer> buffers(4);
  std::size_t before = in_use();
  world.run([&](Rank& rank) {
    buffers[static_cast<std::size_t>(rank.index())] =
        rank.allocate("large", DType::kU8, std::size_t{8} << 20);
    rank.barrier();
    if (rank.index() != 3) rank.release(buffers[0]);
    rank.release(SymmetricBuffer{});
  });
  buffers[3].on<char>(0)[0] = 1;  // rank 3 has not released it
  if (!kSanitized) {
    EXPECT_GT(in_use(), before + (std::size_t{32} << 20));
  }
  world.run([&](Rank& rank) {
    if (rank.index() == 3) rank.release(buffers[3]);
  });
  if (!kSanitized) {
    EXPECT_LT(in_use(), before + (std::size_t{8} << 20));
  }
  expect_user_error([&] { world.run([&](Rank& rank) { rank.release(buffers[0]); }); },
                    {"already released"});
}

// A user with a stalled rank must learn which one, on every rank.
TEST(Faults, ARankThatStallsIsNamedOnEveryOtherRank) {
  for (int late : {0, 2, 3}) {
    SCOPED_TRACE(late);
    World world({.size = 4, .timeout = kSoon});
    std::vector<FaultRecord> records = faults_of(world, [&](Rank& rank) {
      while (rank.index() == late && !rank.aborted()) std::this_thread::sleep_for(kSoon);
      rank.allocate("kv cache", DType::kF32, 8);
    });
    for (const FaultRecord& record : records) {
      EXPECT_EQ(record.waited_for, late);
      EXPECT_NE(record.rank, late);
      std::string text = record.to_string();
      EXPECT_NE(text.find("kv cache"), std::string::npos) << text;
      EXPECT_NE(text.find("deadline"), std::string::npos) << text;
      EXPECT_EQ(text, world.fault().to_string());
    }
    EXPECT_TRUE(world.faulted());
  }
}

TEST(Faults, ARankThatDiesEndsEveryWaitAndItsExceptionComesOut) {
  for (int dying : {0, 3, 4}) {
    SCOPED_TRACE(dying);
    World world({.size = 5, .timeout = kNever});
    std::vector<FaultRecord> records(5);
    auto body = [&](Rank& rank) {
      SignalBlock signals = rank.allocate_signals("never", 1);
      if (rank.index() == dying) throw std::out_of_range("boom\n42");
      try {
        if (rank.index() % 2 == 0) rank.barrier();
        wait_for(rank, signals.at[rank.index()][0], 1);
      } catch (const Fault& fault) {
        records[static_cast<std::size_t>(rank.index())] = fault.record();
        throw;
      }
    };
    EXPECT_THROW(world.run(body), std::out_of_range);
    for (int r = 0; r < 5; ++r) {
      if (r == dying) continue;
      const FaultRecord& record = records[static_cast<std::size_t>(r)];
      EXPECT_EQ(record.waited_for, dying);
      EXPECT_EQ(record.reason, "rank " + std::to_string(dying) + " died: boom\\x0a42");
    }
  }
}

TEST(Faults, TheLowestRankThatFailedByItselfIsReported) {
  World world({.size = 4, .timeout = kNever});
  try {
    world.run([&](Rank& rank) {
      if (rank.index() == 3) throw std::runtime_error("three");
      for (int polls = 0; !rank.aborted(); ++polls) rank.pause(polls);
      if (rank.index() == 2) throw 2;
      rank.throw_fault();
    });
    ADD_FAILURE() << "no exception";
  } catch (int rank) {
    EXPECT_EQ(rank, 2);
  }
  EXPECT_EQ(world.fault().waited_for, 3);
}

TEST(Faults, TheFirstFaultWinsAndStaysUntilRecovery) {
  World world({.size = 8, .timeout = kNever});
  std::vector<FaultRecord> records = faults_of(world, [&](Rank& rank) {
    rank.barrier();
    rank.raise_fault({.program = "p", .role = "r", .rank = rank.index(), .reason = "deadline"});
  });
  for (const FaultRecord& record : records) EXPECT_EQ(record.rank, world.fault().rank);
  for (const FaultRecord& record : faults_of(world, [](Rank& rank) { rank.barrier(); })) {
    EXPECT_EQ(record.to_string(), world.fault().to_string());
  }
  EXPECT_THROW(world.run([](Rank& rank) { rank.barrier(); }), Fault);
}

// A server must be able to go on after a fault without starting again.
TEST(Faults, RecoveryMakesTheWorldUsableWithAllSignalsZero) {
  World world({.size = 4, .timeout = kNever});
  std::vector<SignalBlock> signals(4);
  std::vector<int> restarted;
  for (int round = 0; round < 3; ++round) {
    restarted.clear();
    EXPECT_THROW(world.run([&](Rank& rank) {
      auto r = static_cast<std::size_t>(rank.index());
      if (round == 0) {
        signals[r] = rank.allocate_signals("s", 9);
        rank.barrier();
        for (int i = 0; i < 4; ++i) {
          if (i == rank.index()) {
            int removed = rank.on_recover([&] { restarted.push_back(-1); });
            rank.on_recover([&, i] { restarted.push_back(i); });
            rank.remove_on_recover(removed);
          }
          rank.barrier();
        }
      }
      for (std::size_t i = 0; i < 9; ++i) signals[r].at[r][i].value.fetch_add(i + 1);
      rank.barrier();
      if (rank.index() == 2) throw std::runtime_error("dead");
      rank.barrier();
    }),
                 std::runtime_error);
    world.recover();
    EXPECT_EQ(restarted, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_FALSE(world.faulted());
    std::atomic<int> num_nonzero{0}, num_done{0};
    world.run([&](Rank& rank) {
      auto r = static_cast<std::size_t>(rank.index());
      for (std::size_t i = 0; i < 9; ++i) num_nonzero += signals[r].at[r][i].value.load() != 0;
      rank.release(rank.allocate("again", DType::kF32, 4));
      ++num_done;
    });
    EXPECT_EQ(num_nonzero, 0);
    EXPECT_EQ(num_done, 4);
  }
}

TEST(Faults, ARecoveryCallbackMayRemoveItself) {
  World world({.size = 1});
  int calls = 0;
  world.run([&](Rank& rank) {
    auto token = std::make_shared<int>();
    *token = rank.on_recover([&, token] {
      ++calls;
      rank.remove_on_recover(*token);
    });
  });
  world.recover();
  world.recover();
  EXPECT_EQ(calls, 1);
}

class CapturingSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::atomic<bool> seen{false};
  std::string text;  // read after the run

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    text.assign(message.payload.data(), message.payload.size());
    seen = true;
  }
  void flush_() override {}
};

TEST(Faults, ARankThatNeitherWaitsNorReturnsIsLogged) {
  auto sink = std::make_shared<CapturingSink>();
  log().sinks().push_back(sink);
  World world({.size = 3, .timeout = kSoon});
  EXPECT_THROW(world.run([&](Rank& rank) {
    for (int i = 0; rank.index() == 1 && !sink->seen && i < 1000; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    rank.barrier();
  }),
               Fault);
  log().sinks().pop_back();
  EXPECT_NE(sink->text.find("neither wait nor return: 1"), std::string::npos) << sink->text;
}

TEST(Faults, AMachineWithoutThreadsLeftIsAUserError) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve more address space than the limit";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Three stacks fit and half of one is left, so that only threads are short of memory.
  auto starve = [] {
    constexpr std::size_t kStack = std::size_t{64} << 20;
    mallopt(M_ARENA_MAX, 1);  // one for each thread would take as much
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStack);
    pthread_setattr_default_np(&attributes);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    auto used = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    rlimit limit{.rlim_cur = used + kStack * 7 / 2, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    World world({.size = 64, .timeout = kNever});
    try {
      world.run([](Rank& rank) { rank.barrier(); });
    } catch (const UserError& e) {
      std::fputs(e.what(), stderr);
      std::exit(2);
    }
    std::exit(0);
  };
  EXPECT_EXIT(starve(), testing::ExitedWithCode(2), "world of 64 ranks: no thread for rank");
}

TEST(Waiting, AnInterruptEndsItAndIsAFaultForTheOthers) {
  auto never_told = [](Rank& rank) { wait_for(rank, SignalCounter(), 1); };
  auto never_joined = [](Rank& rank) { rank.barrier(); };
  for (void (*wait)(Rank&) : {+never_told, +never_joined}) {
    World world({.size = 2, .timeout = kNever});
    std::vector<FaultRecord> faults = faults_of(world, [&](Rank& rank) {
      if (rank.index() == 0) {
        Interrupts pressed([] { throw std::runtime_error("pressed"); });
        EXPECT_THROW(wait(rank), std::runtime_error);
      }
      while (!rank.aborted()) rank.pause(100);
      rank.barrier();
    });
    for (const FaultRecord& fault : faults) EXPECT_EQ(fault.reason, "rank 0 was interrupted");
    world.recover();
    world.run([](Rank& rank) { rank.barrier(); });
  }
}

TEST(Waiting, ARankThatWaitsLongCostsLittleProcessorTime) {
  World world({.size = 2, .timeout = kNever});
  double cpu_ns = 0, wall_ns = 0;
  world.run([&](Rank& rank) {
    SignalBlock go = rank.allocate_signals("go", 1);
    if (rank.index() == 0) {
      std::this_thread::sleep_for(milliseconds(200));
      go.at[1][0].value.fetch_add(1, std::memory_order_release);
      rank.notify_changed(1);
      return;
    }
    auto cpu = [] {
      timespec now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
    };
    double cpu_begin = cpu();
    std::int64_t wall_begin = Recorder::now_ns();
    wait_for(rank, go.at[1][0], 1);
    cpu_ns = cpu() - cpu_begin;
    wall_ns = static_cast<double>(Recorder::now_ns() - wall_begin);
  });
  EXPECT_LT(cpu_ns, 0.25 * wall_ns);
}

}  // namespace
}  // namespace stretto::world_test
