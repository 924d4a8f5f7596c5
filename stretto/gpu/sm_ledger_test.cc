// What the ledger makes streams wait for, on streams that only take notes; and random launches on
// several ranks, run in random order: without the ledger they stall.
#include "stretto/gpu/sm_ledger.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "stretto/base/test_seed.h"

namespace stretto::sm_ledger_test {
namespace {

// Streams that write down what is asked of them: "record 0", "1 waits for record 0".
struct Notes {
  std::vector<std::string> lines;
  std::map<int, std::uint64_t> captures;  // of streams
  // Of events: what a stream holds when it is recorded, and what another gets to wait for.
  std::function<int(int stream)> on_record;
  std::function<void(int stream, int event)> on_wait;

  std::string take() {
    std::string all;
    for (const std::string& l : std::exchange(lines, {})) all += (all.empty() ? "" : "; ") + l;
    return all;
  }
};

struct NotedStreams {
  struct Stream {
    int id;
    Notes* notes;
  };
  struct Event {
    std::string of;
    int id;
  };

  static Stream keep(const Stream& s) { return s; }
  static bool same(const Stream& a, const Stream& b) { return a.id == b.id; }
  static std::uint64_t capture_of(const Stream& s) {
    auto at = s.notes->captures.find(s.id);
    return at == s.notes->captures.end() ? 0 : at->second;
  }
  static Event record(const Stream& s) {
    s.notes->lines.push_back(fmt::format("record {}", s.id));
    return {s.notes->lines.back(), s.notes->on_record ? s.notes->on_record(s.id) : 0};
  }
  static void wait(const Stream& s, const Event& event) {
    s.notes->lines.push_back(fmt::format("{} waits for {}", s.id, event.of));
    if (s.notes->on_wait) s.notes->on_wait(s.id, event.id);
  }
};

constexpr int kSms = 132;

class SmLedgerTest : public ::testing::Test {
 protected:
  // What launching does to streams.
  std::string launch(int stream, int blocks, int cluster = 1) {
    ledger_.admit({stream, &notes_}, {.program = "p", .blocks = blocks, .cluster = cluster});
    return notes_.take();
  }
  std::string refusal(int stream, int blocks) {
    try {
      launch(stream, blocks);
    } catch (const UserError& e) {
      return e.what();
    }
    return "taken";
  }

  Notes notes_;
  SmLedger<NotedStreams> ledger_{kSms, {}};
};

TEST_F(SmLedgerTest, OneStreamNeedsNothing) {
  for (int blocks : {132, 1, 132, 300}) EXPECT_EQ(launch(0, blocks), "");
}

TEST_F(SmLedgerTest, WhatFitsRunsSideBySide) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(launch(0, 100), "");
    EXPECT_EQ(launch(1, 16), "");
    EXPECT_EQ(launch(2, 16), "");
  }
}

TEST_F(SmLedgerTest, WhatDoesNotFitComesAfterAllBefore) {
  launch(0, 100);
  launch(1, 32);
  EXPECT_EQ(launch(2, 1),
            "record 0; 2 waits for record 0; record 1; 2 waits for record 1; record 2");
  // The next generation: a stream that joins it comes after its start, once.
  EXPECT_EQ(launch(0, 100), "0 waits for record 2");
  EXPECT_EQ(launch(0, 131), "");
  EXPECT_EQ(launch(1, 1),
            "record 2; 1 waits for record 2; record 0; 1 waits for record 0; record 1");
}

TEST_F(SmLedgerTest, TheLargestOfAStreamCounts) {
  launch(0, 132);
  launch(0, 1);
  EXPECT_EQ(launch(1, 1), "record 0; 1 waits for record 0; record 1");
}

TEST_F(SmLedgerTest, ClustersNeedSpareSms) {
  launch(0, 100);
  EXPECT_EQ(launch(1, 32), "");
  ledger_.clear();
  launch(0, 100);
  EXPECT_EQ(launch(1, 24, 2), "") << "a lone SM in each of 8 groups";
  ledger_.clear();
  launch(0, 100);
  EXPECT_NE(launch(1, 26, 2), "");
  ledger_.clear();
  EXPECT_EQ(launch(0, 132, 4), "") << "alone, they have the GPU";
}

TEST_F(SmLedgerTest, AfterClearNothingRuns) {
  launch(0, 132);
  ledger_.clear();
  EXPECT_EQ(launch(1, 132), "");
}

TEST_F(SmLedgerTest, ACaptureIsChainedWithinItself) {
  launch(0, 132);
  notes_.captures = {{0, 7}, {1, 7}};
  EXPECT_EQ(launch(0, 132), "") << "what ran before the capture is not in its graph";
  EXPECT_EQ(launch(1, 132), "record 0; 1 waits for record 0; record 1");
  notes_.captures = {{0, 8}};
  EXPECT_EQ(launch(0, 132), "") << "another capture";
}

TEST_F(SmLedgerTest, CapturesSideBySideMustFit) {
  notes_.captures = {{0, 7}, {1, 8}};
  launch(0, 100);
  EXPECT_EQ(launch(1, 32), "");
  EXPECT_NE(refusal(1, 33).find("beside another capture"), std::string::npos);
  notes_.captures.erase(0);
  EXPECT_EQ(refusal(1, 33), "taken") << "the first has ended";
}

TEST_F(SmLedgerTest, WhatRunsIsNotWaitedForThroughACapture) {
  launch(0, 132);
  notes_.captures = {{0, 7}};
  EXPECT_NE(refusal(1, 132).find("begun a capture"), std::string::npos);
  notes_.captures.clear();
  EXPECT_EQ(launch(1, 132), "record 0; 1 waits for record 0; record 1");
}

// A rank whose streams hold launches, records and waits, which run in any order that they allow.
// A launch takes its blocks when it starts, if they are free, and gives them back when the same
// launch has started on all ranks: the order of launches is the same everywhere, the streams and
// the speed are not.
class Rank {
 public:
  explicit Rank(int num_streams) : queues_(static_cast<std::size_t>(num_streams)) {
    notes_.on_record = [this](int s) { return enqueue(s, {Kind::kRecord, ++num_events_}); };
    notes_.on_wait = [this](int s, int event) { enqueue(s, {Kind::kWait, event}); };
  }

  void launch(int stream, int id, int blocks, bool admitted) {
    if (admitted) ledger_.admit({stream, &notes_}, {.program = "p", .blocks = blocks});
    enqueue(stream, {Kind::kLaunch, id, blocks});
  }

  // A step of a random stream. `everywhere`: launches that have started on all ranks. False where
  // none can do one.
  template <typename Random>
  bool step(Random& random, const std::function<void(int)>& starts,
            const std::function<bool(int)>& everywhere) {
    std::vector<std::size_t> order(queues_.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    return std::any_of(order.begin(), order.end(),
                       [&](std::size_t s) { return step_of(queues_[s], starts, everywhere); });
  }
  bool done() const {
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const Queue& q) { return q.next == q.entries.size(); });
  }
  int most_at_a_time() const { return most_; }

 private:
  enum class Kind { kLaunch, kRecord, kWait };
  struct Entry {
    Kind kind;
    int id, blocks = 0;
  };
  struct Queue {
    std::vector<Entry> entries;
    std::size_t next = 0;
    bool started = false;  // the next entry, a launch
  };

  int enqueue(int stream, Entry e) {
    queues_[static_cast<std::size_t>(stream)].entries.push_back(e);
    return e.id;
  }

  bool step_of(Queue& q, const std::function<void(int)>& starts,
               const std::function<bool(int)>& everywhere) {
    if (q.next == q.entries.size()) return false;
    const Entry& e = q.entries[q.next];
    if (e.kind == Kind::kWait && !passed_[e.id]) return false;
    if (e.kind == Kind::kLaunch && !q.started) {
      if (e.blocks > kSms - used_) return false;
      used_ += e.blocks;
      most_ = std::max(most_, ++running_);
      starts(e.id);
      return q.started = true;
    }
    if (e.kind == Kind::kLaunch) {
      if (!everywhere(e.id)) return false;
      used_ -= e.blocks;
      --running_;
      q.started = false;
    }
    if (e.kind == Kind::kRecord) passed_[e.id] = true;
    ++q.next;
    return true;
  }

  Notes notes_;
  SmLedger<NotedStreams> ledger_{kSms, {}};
  std::vector<Queue> queues_;
  std::map<int, bool> passed_;
  int num_events_ = 0, used_ = 0, running_ = 0, most_ = 0;
};

// How many of `rounds` random sets of launches stall; the most kernels that ran at a time.
std::pair<int, int> stalls(std::mt19937_64& random, int rounds, bool admitted) {
  constexpr int kRanks = 3, kStreams = 4, kLaunches = 60;
  int stalled = 0, most = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < kRanks; ++r) ranks.push_back(std::make_unique<Rank>(kStreams));
    for (int i = 0; i < kLaunches; ++i) {
      int blocks = random() % 3 == 0 ? 1 + static_cast<int>(random() % kSms)
                                     : 1 + static_cast<int>(random() % 40);
      for (auto& rank : ranks) {
        rank->launch(static_cast<int>(random() % kStreams), i, blocks, admitted);
      }
    }
    std::map<int, int> started;
    auto starts = [&](int id) { ++started[id]; };
    auto everywhere = [&](int id) { return started[id] == kRanks; };
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(ranks.begin(), ranks.end(), random);
      for (auto& rank : ranks) {
        // A rank may get ahead of the others.
        for (std::uint64_t n = 1 + random() % 8; n > 0 && rank->step(random, starts, everywhere);
             --n) {
          moved = true;
        }
      }
    }
    stalled += !std::all_of(ranks.begin(), ranks.end(), [](auto& r) { return r->done(); });
    for (auto& rank : ranks) most = std::max(most, rank->most_at_a_time());
  }
  return {stalled, most};
}

TEST(SmLedgerRanks, NeverStall) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  auto [stalled, most] = stalls(random, 200, true);
  EXPECT_EQ(stalled, 0);
  EXPECT_GE(most, 3) << "kernels that fit run side by side";
  EXPECT_GT(stalls(random, 200, false).first, 0) << "the ledger is what keeps them going";
}

}  // namespace
}  // namespace stretto::sm_ledger_test
