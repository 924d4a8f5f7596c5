// What both kinds of worlds must do alike.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <thread>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/rank_processes_testing.h"

namespace stretto::world_kinds_test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNever{60'000};

void wait_for(Rank& rank, const SignalCounter& counter, std::uint64_t at_least) {
  for (int polls = 0; counter.value.load(std::memory_order_acquire) < at_least; ++polls) {
    if (rank.aborted()) rank.throw_fault();
    rank.pause(polls);
  }
}

std::string kind_name(const testing::TestParamInfo<WorldKind>& kind) {
  return kind.param == WorldKind::kThreads ? "Threads" : "Processes";
}

class WorldKinds : public testing::TestWithParam<WorldKind> {};

// "" where every rank's memory and signals hold what its owner wrote.
std::string exchange(Rank& rank, std::uint64_t seed) {
  int size = rank.size();
  std::size_t elements = 1 + seed % 1000;
  SymmetricBuffer data = rank.allocate("data", DType::kI64, elements);
  SignalBlock signals = rank.allocate_signals("from", static_cast<std::size_t>(size));
  if (data.bytes != elements * 8) return "wrong size";
  auto value = [&](int from, std::size_t i) {
    return static_cast<std::int64_t>(seed % 100'000) * (from + 1) + static_cast<std::int64_t>(i);
  };
  for (int r = 0; r < size; ++r) {
    if (reinterpret_cast<std::uintptr_t>(data.on<std::byte>(r)) % 64 != 0) return "not aligned";
  }
  auto* own = data.on<std::int64_t>(rank.index());
  if (std::count(own, own + elements, 0) != static_cast<std::ptrdiff_t>(elements)) {
    return "not zeroed";
  }
  for (std::size_t i = 0; i < elements; ++i) own[i] = value(rank.index(), i);
  for (int to = 0; to < size; ++to) {
    signals.at[to][rank.index()].value.fetch_add(1, std::memory_order_release);
    rank.notify_changed(to);
  }
  for (int from = 0; from < size; ++from) {
    wait_for(rank, signals.at[rank.index()][from], 1);
    for (std::size_t i = 0; i < elements; ++i) {
      if (data.on<std::int64_t>(from)[i] != value(from, i)) return "wrong data";
    }
  }
  // Nobody's copy goes before all have read it, also where releases come early.
  rank.release(data);
  rank.release(signals);
  return "";
}

// Without this no operator gets right data from a peer at some world size.
TEST_P(WorldKinds, EveryRankReachesEveryRanksMemoryAndSignals) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  for (int size : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
    if (size == 64 && GetParam() == WorldKind::kProcesses) continue;
    auto reports = on_every_rank(GetParam(), size, kNever, [&](Rank& rank) {
      std::string wrong = rank.size() == size ? "" : "wrong world";
      for (int round = 0; round < 3 && wrong.empty(); ++round) wrong = exchange(rank, seed + round);
      return wrong;
    });
    EXPECT_EQ(reports, std::vector<std::string>(static_cast<std::size_t>(size))) << size;
  }
}

struct Mismatch {
  const char* what;
  std::function<void(Rank&)> usual, odd;
  std::vector<std::string> named;
};

// Ranks that disagree about memory would otherwise corrupt each other silently.
TEST_P(WorldKinds, DisagreementGivesTheSameErrorOnEveryRankAndTheWorldGoesOn) {
  auto allocate = [](const char* name, DType dtype, std::size_t n) {
    return [=](Rank& rank) { rank.allocate(name, dtype, n); };
  };
  auto usual = allocate("full", DType::kF32, 16);
  auto signals = [](Rank& rank) { rank.allocate_signals("full", 16); };
  std::vector<Mismatch> mismatches = {
      {"size", usual, allocate("full", DType::kF32, 17), {"float32 x 16", "float32 x 17"}},
      {"dtype", usual, allocate("full", DType::kI32, 16), {"float32 x 16", "int32 x 16"}},
      {"name", usual, allocate("half", DType::kF32, 16), {"'full'", "'half'"}},
      {"order", usual, [](Rank& rank) { rank.barrier(); }, {"'full'", "barrier"}},
      {"kind", usual, signals, {"allocate 'full'", "allocate signals 'full'"}},
      {"call",
       [](Rank& rank) { rank.agree("all_reduce [4]", 7); },
       [](Rank& rank) { rank.agree("all_reduce [5]", 7); },
       {"called all_reduce [4]", "called all_reduce [5]"}},
      {"content of a call",
       [](Rank& rank) { rank.agree("mine", 7); },
       [](Rank& rank) { rank.agree("mine", 8); },
       {"collective calls differ", "mine"}},
      {"call or memory", [](Rank& rank) { rank.agree("mine", 7); }, usual, {"mine", "'full'"}},
      {"hostile name", usual, allocate("a\nb\xff", DType::kF32, 16), {"a\\x0ab\\xff"}},
      {"group",
       [](Rank& rank) {
         rank.split({0, 1, 2, 3});
       },
       [](Rank& rank) { rank.split({rank.index()}); },
       {"groups differ", "{0, 1, 2, 3}"}},
      {"group without itself",
       [](Rank& rank) { rank.split({rank.index()}); },
       [](Rank& rank) { rank.split({(rank.index() + 1) % 4}); },
       {"a group without itself"}},
      {"no such rank",
       [](Rank& rank) { rank.split({}); },
       [](Rank& rank) { rank.split({9}); },
       {"names rank 9"}},
  };
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const Mismatch& m : mismatches) {
    int odd = static_cast<int>(random() % 4);
    SCOPED_TRACE(testing::Message() << m.what << ", odd rank " << odd);
    auto reports = on_every_rank(GetParam(), 4, kNever, [&](Rank& rank) {
      std::string text = outcome_of([&] {
        (rank.index() == odd ? m.odd : m.usual)(rank);
        return "accepted";
      });
      rank.release(rank.allocate("after", DType::kU8, 1));
      return text;
    });
    EXPECT_EQ(std::count(reports.begin(), reports.end(), reports[0]), 4) << reports[1];
    ASSERT_TRUE(reports[0].starts_with("UserError: ")) << reports[0];
    expect_user_error([&] { throw UserError(reports[0].substr(11)); }, m.named);
  }
}

// A rank that does not make a call after all would leave the others waiting for it, or meet them in
// its next one.
TEST_P(WorldKinds, RefusedCallsCountAndEndTheOthersWaitsAtOnce) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  constexpr int kSize = 4, kCalls = 300;
  auto reports = on_every_rank(GetParam(), kSize, kNever, [&](Rank& rank) {
    std::mt19937_64 random(seed);
    for (int call = 0; call < kCalls; ++call) {
      std::uint64_t refusing = random() % 3 == 0 ? random() % (1 << kSize) : 0;
      bool allocates = random() % 4 == 0, sleeps = random() % 8 == 0;
      bool late = random() % kSize == static_cast<std::uint64_t>(rank.index());
      if (sleeps && late) std::this_thread::sleep_for(milliseconds(1));
      std::string name = fmt::format("call {}", call), said;
      try {
        if ((refusing >> rank.index() & 1) != 0) {
          rank.refuse(name, name + " is not mine");
        } else if (allocates) {
          rank.release(rank.allocate(name, DType::kU8, 8));
        } else {
          rank.agree(name, 7);
        }
      } catch (const Disagreement& error) {
        said = error.what();
      }
      bool told = refusing != 0 && (refusing >> rank.index() & 1) == 0;
      if (said.empty() == told) return fmt::format("{} with {}: {}", name, refusing, said);
      if (!told) continue;
      int who = said.size() > 5 ? said[5] - '0' : -1;  // "rank N has refused ..."
      if (said.find(name + " is not mine") == std::string::npos || who < 0 || who >= kSize ||
          (refusing >> who & 1) == 0) {
        return fmt::format("{} with {}: {}", name, refusing, said);
      }
    }
    return std::string();
  });
  EXPECT_EQ(reports, std::vector<std::string>(kSize));
}

// One meeting tells ranks that make one call whether they say the same; who makes another is
// refused, and the next calls belong together all the same.
TEST_P(WorldKinds, WhetherAllSayTheSameTakesOneMeeting) {
  constexpr int kSize = 3, kCalls = 200;
  const std::uint64_t seed = test_seed();
  auto reports = on_every_rank(GetParam(), kSize, kNever, [&](Rank& rank) {
    std::mt19937_64 random(seed);
    for (int call = 0; call < kCalls; ++call) {
      std::uint64_t content[kSize], what = random() % 4, other = random() % kSize;
      for (std::uint64_t& c : content) c = what == 0 ? random() % 2 : 7;
      bool is_same = content[0] == content[1] && content[1] == content[2];
      std::string name =
          what == 1 && other == static_cast<std::uint64_t>(rank.index()) ? "other" : "mine";
      std::uint64_t before = rank.num_calls();
      std::string said = outcome_of([&] {
        if (what == 2 && other == static_cast<std::uint64_t>(rank.index())) {
          rank.refuse(name, "for a reason");
          return "refused";
        }
        return rank.same(name, content[rank.index()]) ? "same" : "differs";
      });
      bool as_wanted = what == 1   ? said.find("collective calls differ") != std::string::npos
                       : what == 2 ? said.find("refused") != std::string::npos
                                   : said == (is_same ? "same" : "differs");
      if (!as_wanted || rank.num_calls() != before + 1) {
        return fmt::format("seed {}, call {}, kind {}: {}", seed, call, what, said);
      }
    }
    return std::string();
  });
  EXPECT_EQ(reports, std::vector<std::string>(kSize));
}

// The others wait elsewhere, for what this rank does next, or have ended.
TEST_P(WorldKinds, ARankThatRefusesWaitsForNobodyAndOthersAreToldBeforeAllHaveCome) {
  auto reports = on_every_rank(GetParam(), 3, kNever, [](Rank& rank) {
    SymmetricBuffer flags = rank.allocate("flags", DType::kI64, 1);
    auto flag = [&](int r) { return std::atomic_ref(*flags.on<std::int64_t>(r)); };
    auto wait = [&](int r) {
      for (int polls = 0; flag(r).load() == 0; ++polls) rank.pause(polls);
    };
    std::string said;
    if (rank.index() == 1) rank.refuse("mine", "for a reason");
    if (rank.index() == 0) said = outcome_of([&] { return rank.agree("mine", 1), "agreed"; });
    flag(rank.index()).store(1);
    if (rank.index() == 2) {
      wait(0);  // which has been told by now, though this rank has not come
      wait(1);
      said = outcome_of([&] { return rank.agree("mine", 1), "agreed"; });
    }
    rank.barrier();
    rank.release(flags);
    return said;
  });
  const char* told = "UserError: rank 1 has refused the call in this place: for a reason";
  EXPECT_EQ(reports, (std::vector<std::string>{told, "", told}));
}

TEST_P(WorldKinds, ASizeThatCannotBeIsRefusedOnEveryRank) {
  std::size_t huge = std::numeric_limits<std::size_t>::max() / 2;
  auto reports = on_every_rank(GetParam(), 3, kNever, [&](Rank& rank) {
    std::string first, text;
    for (std::size_t size : {huge, huge / 16}) {
      first = outcome_of([&] { return rank.allocate("huge", DType::kF32, size), ""; });
      text += first.find("UserError: symmetric allocation 'huge'") == 0 ? "refused " : first;
    }
    first = outcome_of([&] { return rank.allocate_signals("huge", huge), ""; });
    text += first.find("UserError: symmetric allocation 'huge'") == 0 ? "refused" : first;
    rank.allocate("empty is fine", DType::kF32, 0);
    return text;
  });
  EXPECT_EQ(reports, std::vector<std::string>(3, "refused refused refused"));
}

// A user with a stalled rank must learn which one, on every rank.
TEST_P(WorldKinds, ARankThatStallsIsNamedOnEveryRank) {
  for (int late : {0, 2}) {
    SCOPED_TRACE(late);
    auto reports = on_every_rank(GetParam(), 3, milliseconds(300), [&](Rank& rank) {
      rank.barrier();
      while (rank.index() == late && !rank.aborted()) std::this_thread::yield();
      rank.allocate("kv cache", DType::kF32, 8);
      return "";
    });
    for (const std::string& report : reports) {
      EXPECT_EQ(report, reports[0]);
      EXPECT_NE(report.find("kv cache"), std::string::npos) << report;
      EXPECT_NE(report.find("deadline: rank " + std::to_string(late)), std::string::npos) << report;
    }
  }
}

TEST_P(WorldKinds, ARankThatReturnsEarlyIsNamedWithoutWaitingForTheDeadline) {
  auto reports = on_every_rank(GetParam(), 3, kNever, [&](Rank& rank) {
    rank.barrier();
    if (rank.index() != 1) rank.barrier();
    return "";
  });
  for (int r : {0, 2}) {
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_NE(report.find("rank 1 has returned"), std::string::npos) << report;
  }
}

TEST_P(WorldKinds, ABodyThatThrowsEndsEveryWaitOfTheOthers) {
  auto reports = on_every_rank(GetParam(), 4, kNever, [&](Rank& rank) -> std::string {
    SignalBlock signals = rank.allocate_signals("never", 1);
    if (rank.index() == 2) throw std::out_of_range("boom\n42");
    if (rank.index() == 0) rank.barrier();
    wait_for(rank, signals.at[rank.index()][0], 1);
    return "";
  });
  EXPECT_EQ(reports[2], "error: boom\n42");
  for (int r : {0, 1, 3}) {
    const std::string& report = reports[static_cast<std::size_t>(r)];
    EXPECT_NE(report.find("rank 2 died: boom\\x0a42"), std::string::npos) << report;
  }
}

// More ranks than cores is the normal case on a laptop: every round must get through.
TEST_P(WorldKinds, ATokenRunsRoundARingOfEightRanksWithAndWithoutHints) {
  auto reports = on_every_rank(GetParam(), 8, kNever, [&](Rank& rank) {
    SignalBlock token = rank.allocate_signals("token", 1);
    int next = (rank.index() + 1) % 8;
    for (std::uint64_t lap = 1; lap <= 40; ++lap) {
      if (rank.index() != 0) wait_for(rank, token.at[rank.index()][0], lap);
      token.at[next][0].value.fetch_add(1, std::memory_order_release);
      if (lap % 2 == 0) rank.notify_changed(next);
      if (rank.index() == 0) wait_for(rank, token.at[0][0], lap);
    }
    return "";
  });
  EXPECT_EQ(reports, std::vector<std::string>(8));
}

// Pipelines of tensor-parallel groups: each group by itself, all at once.
TEST_P(WorldKinds, SubWorldsOfAnyRanksWorkAtTheSameTimeAndShareNothing) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  auto reports = on_every_rank(GetParam(), 5, kNever, [&](Rank& rank) -> std::string {
    std::vector<int> group = rank.index() % 2 == 0 ? std::vector{4, 0, 2} : std::vector{1, 3};
    std::shared_ptr<Rank> sub = rank.split(group);
    std::shared_ptr<Rank> some = rank.split(rank.index() % 2 == 0 ? group : std::vector<int>{});
    if ((some != nullptr) != (rank.index() % 2 == 0)) return "wrong group";
    if (sub == nullptr || sub->index() != rank.index() / 2) return "wrong rank";
    if (sub->size() != (rank.index() % 2 == 0 ? 3 : 2)) return "wrong size";
    for (std::uint64_t round = 0; round < 20; ++round) {
      std::string wrong =
          exchange(*sub, seed + round + static_cast<std::uint64_t>(rank.index() % 2));
      if (!wrong.empty()) return "in a group: " + wrong;
      if (rank.index() % 2 == 0 && round == 10) wrong = exchange(*some, seed);
      if (!wrong.empty()) return "in a second world of a group: " + wrong;
    }
    return exchange(rank, seed);
  });
  EXPECT_EQ(reports, std::vector<std::string>(5));
}

INSTANTIATE_TEST_SUITE_P(Of, WorldKinds,
                         testing::Values(WorldKind::kThreads, WorldKind::kProcesses), kind_name);

}  // namespace
}  // namespace stretto::world_kinds_test
