// Many requests by schedules drawn by lot, each also alone, bit by bit: what batch_test.cc does on
// CPU ranks and gpu_batch_test.cc on GPUs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "tests/batch_requests.h"

namespace stretto {

struct Lot {
  const char* model;
  int ranks;
  int requests;  // with STRETTO_SOAK
  DType dtype = DType::kF32;
};

// Rounds of requests that come, go and are cut short by lot, and each of them alone.
class Rounds {
 public:
  static constexpr int kInRound = 500, kFew = 50;
  static constexpr std::int64_t kMostRows = 128, kPages = 46;

  // Of tokens below `vocab`. Every rank makes the same.
  Rounds(int vocab, std::uint64_t seed) : vocab_(vocab), seed_(seed) {}

  static BatchOptions options(DType dtype) {
    return {.dtype = dtype,
            .max_rows = kMostRows,
            .max_tokens = 512,
            .cache = {.page = kPage, .num_pages = kPages, .sequences = 40}};
  }

  void run_all(BatchModel& model, int requests, const std::function<void()>& after_round) {
    for (int done = 0; done < requests; done += kInRound) {
      run(model, std::min(kInRound, requests - done), static_cast<std::uint64_t>(done));
      after_round();
    }
  }

  void run(BatchModel& model, int requests, std::uint64_t round) {
    Requests draw(seed_ * 1'000'003 + round);
    std::vector<Wish> wishes;
    for (int i = 0; i < requests; ++i) {
      Wish w = draw.wish(vocab_);
      w.after_step = draw.below(1 + requests / 4);  // faster than they are served
      w.max_tokens = 1 + draw.below(64);            // so that pages run out on the way
      if (draw.below(24) == 0) w.gone_after = draw.below(60);
      wishes.push_back(std::move(w));
    }
    const SchedulerLimits limits{.max_running = 24 + draw.below(16),
                                 .max_rows = 64 + draw.below(static_cast<int>(kMostRows) - 63),
                                 .num_blocks = 30 + draw.below(static_cast<int>(kPages) - 29)};
    Served run;
    serve(model, limits, wishes, run);
    counted.steps += run.steps;
    counted.running += run.running;
    counted.cancelled += run.cancelled;
    counted.counters.preemptions += run.counters.preemptions;
    counted.counters.prefix_queries += run.counters.prefix_queries;
    counted.counters.prefix_hits += run.counters.prefix_hits;
    for (std::size_t i = 0; i < wishes.size(); ++i) compare(model, wishes[i], run.answers[i]);
  }

  double mean_running() const {
    return static_cast<double>(counted.running) / static_cast<double>(counted.steps);
  }

  void print(const Lot& of) const {
    const Scheduler::Counters& c = counted.counters;
    fmt::print(
        "{} in {} on {} ranks, seed {}: {} requests, {} tokens, {} different; {:.1f} running on "
        "average, "
        "{} preemptions, {} cancellations, {} of {} tokens of prompts from the cache\n",
        of.model, name(of.dtype), of.ranks, seed_, compared, tokens, different, mean_running(),
        c.preemptions, counted.cancelled, c.prefix_hits, c.prefix_queries);
    std::fflush(stdout);
  }

  // What makes a comparison of many requests count; of all models and ranks together more is asked
  // (docs/performance/cpu.md).
  void expect_it_counts(int requests) const {
    const Scheduler::Counters& c = counted.counters;
    EXPECT_EQ(compared, requests);
    if (requests >= kFew) {
      EXPECT_GT(c.prefix_hits, 0);
    }
    if (requests < kInRound) return;
    EXPECT_GE(mean_running(), 14);
    EXPECT_GE(c.preemptions * 20, requests);
    EXPECT_GE(counted.cancelled * 20, requests);
    EXPECT_GE(c.prefix_hits * 5, c.prefix_queries);
  }

  Served counted;  // of all rounds; without answers
  std::int64_t compared = 0, tokens = 0, different = 0;

 private:
  // Who went early has the beginning of what is answered alone.
  void compare(BatchModel& model, Wish wish, const Reply& got) {
    const bool may_be_short = std::exchange(wish.gone_after, -1) >= 0;
    wish.after_step = 0;
    Served one;
    serve(model, {.max_running = 1, .max_rows = 37, .num_blocks = 8, .prefix_caching = false},
          {wish}, one);
    Reply alone = std::move(one.answers[0]);
    if (may_be_short) {
      alone.tokens.resize(std::min(alone.tokens.size(), got.tokens.size()));
      alone.logits.resize(alone.tokens.size());
      alone.best.resize(alone.tokens.size());
      std::erase_if(alone.prompt, [&](const auto& p) { return !got.prompt.contains(p.first); });
    }
    ++compared;
    tokens += std::ssize(got.tokens);
    different += got == alone ? 0 : 1;
  }

  int vocab_;
  std::uint64_t seed_;
};

}  // namespace stretto
