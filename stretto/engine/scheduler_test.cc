// Requests in lots, tiny caches, cancellations between and during steps: a scheduler that loses a
// block or a request stops a server, one that lets a request starve stops a client.
#include "stretto/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

std::vector<int> prompt(int count, int token = 1) {
  return std::vector<int>(static_cast<std::size_t>(count), token);
}

std::map<RequestId, int> choices(const std::vector<Piece>& pieces, int token = 7) {
  std::map<RequestId, int> chosen;
  for (const Piece& p : pieces) {
    if (p.last) chosen[p.id] = token;
  }
  return chosen;
}

TEST(Scheduler, DecodesGoBesideAPieceOfAPrompt) {
  Scheduler s({.max_running = 4, .max_rows = 8, .num_blocks = 64, .block_tokens = 4});
  RequestId a = s.add({.tokens = prompt(2), .max_tokens = 8});
  s.complete(choices(s.decide()));
  RequestId b = s.add({.tokens = prompt(20, 2), .max_tokens = 8});
  std::vector<std::int64_t> of_b;
  for (int step = 0; step < 3; ++step) {
    std::vector<Piece> pieces = s.decide();
    ASSERT_EQ(pieces.size(), 2U);
    EXPECT_EQ(pieces[0].id, a);
    EXPECT_EQ(pieces[0].count, 1);
    EXPECT_EQ(pieces[1].id, b);
    of_b.push_back(pieces[1].count);
    EXPECT_EQ(pieces[1].last, step == 2);
    s.complete(choices(pieces));
  }
  EXPECT_EQ(of_b, (std::vector<std::int64_t>{7, 7, 6}));
}

TEST(Scheduler, TheLastOneGivesItsBlocksBackAndGoesOnLater) {
  Scheduler s({.max_running = 2, .max_rows = 8, .num_blocks = 4, .block_tokens = 2});
  RequestId a = s.add({.tokens = prompt(2), .max_tokens = 6});
  RequestId b = s.add({.tokens = prompt(2, 2), .max_tokens = 6});
  std::vector<RequestId> ended;
  for (int step = 0; step < 40 && !s.is_idle(); ++step) {
    s.complete(choices(s.decide()));
    s.verify();
    for (RequestId id : {a, b}) {
      if (!s.has(id) && std::count(ended.begin(), ended.end(), id) == 0) ended.push_back(id);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{a, b}));
  EXPECT_GT(s.counters().preemptions, 0);
}

TEST(Scheduler, WhatWasComputedIsFoundAgain) {
  Scheduler s({.max_running = 2, .max_rows = 16, .num_blocks = 8, .block_tokens = 4});
  s.add({.tokens = prompt(9)});
  s.complete(choices(s.decide()));
  s.add({.tokens = prompt(9)});
  std::vector<Piece> pieces = s.decide();
  EXPECT_EQ(pieces.at(0).first, 8);
  s.complete(choices(pieces));
  s.add({.tokens = prompt(8)});
  pieces = s.decide();
  EXPECT_EQ(pieces.at(0).first, 4) << "the last token is computed in any case";
  s.complete(choices(pieces));
  s.add({.tokens = prompt(9), .salt = "other"});
  pieces = s.decide();
  EXPECT_EQ(pieces.at(0).first, 0);
  s.complete(choices(pieces));
  s.add({.tokens = prompt(9), .every_row = true});
  EXPECT_EQ(s.decide().at(0).first, 0);
}

TEST(Scheduler, TellsWhatBecameOfARequest) {
  Scheduler s({.max_running = 2, .max_rows = 16, .num_blocks = 4, .block_tokens = 4});
  RequestId a = s.add({.tokens = prompt(9)});
  s.complete(choices(s.decide()));
  EXPECT_FALSE(s.has(a));
  RequestId b = s.add({.tokens = prompt(9), .max_tokens = 4});
  RequestId c = s.add({.tokens = prompt(3, 2), .max_tokens = 8});
  s.complete(choices(s.decide()));
  EXPECT_EQ(s.course(b).cached, 8);
  EXPECT_EQ(s.course(b).preemptions, 0);
  while (s.has(b)) s.complete(choices(s.decide()));
  EXPECT_EQ(s.course(c).cached, 0);
  EXPECT_GT(s.course(c).preemptions, 0) << "b needs the last block";
  EXPECT_EQ(s.course(c).preemptions, s.counters().preemptions);
}

TEST(Scheduler, HigherPrioritiesComeInFirst) {
  Scheduler s({.max_running = 1, .max_rows = 4, .num_blocks = 8, .block_tokens = 4});
  s.add({.tokens = prompt(2)});
  RequestId b = s.add({.tokens = prompt(2), .priority = 1});
  EXPECT_EQ(s.decide().at(0).id, b);
}

TEST(Scheduler, RefusesWhatNeverFits) {
  Scheduler s({.max_running = 1, .max_rows = 4, .num_blocks = 2, .block_tokens = 4});
  s.add({.tokens = prompt(4), .max_tokens = 5});
  EXPECT_THROW(s.add({.tokens = prompt(4), .max_tokens = 6}), UserError);
  EXPECT_THROW(s.add({}), UserError);
  // Those that name options see to these.
  EXPECT_THROW(Scheduler({.max_running = 5, .max_rows = 4}), InternalError);
  EXPECT_THROW(Scheduler({.max_running = 0, .max_rows = 4}), InternalError);
  EXPECT_THROW(Scheduler({.max_running = 1, .max_rows = 4, .num_blocks = 0}), InternalError);
}

// Draws what clients do, and holds what comes of it against what every request was promised.
class Trace {
 public:
  explicit Trace(std::uint64_t seed) : random_(seed) {
    limits_.max_running = 1 + below(6);
    limits_.max_rows = limits_.max_running + below(12);
    limits_.max_prompts = below(3);
    limits_.num_blocks = 6 + below(20);
    limits_.block_tokens = 1 + below(5);
    limits_.prefix_caching = below(4) != 0;
    scheduler_.emplace(limits_);
  }

  void step() {
    if (below(3) == 0 && live_.size() < 12) add();
    if (below(40) == 0) cancel();
    std::vector<RequestId> running = oldest_running();
    std::vector<Piece> pieces = scheduler_->decide();
    ASSERT_EQ(pieces.empty(), live_.empty());
    std::int64_t rows = 0, prompts = 0;
    for (const Piece& p : pieces) {
      rows += p.count;
      prompts += p.count > 1;
      ASSERT_GE(p.count, 1);
      const Live& l = live_.at(p.id);
      std::span<const int> tokens = scheduler_->tokens(p.id);
      ASSERT_TRUE(std::ranges::equal(tokens, l.tokens)) << "its tokens are kept";
      ASSERT_LE(p.first + p.count, static_cast<std::int64_t>(tokens.size()));
      ASSERT_EQ(p.last, p.first + p.count == static_cast<std::int64_t>(tokens.size()));
      check_content(p, l);
    }
    ASSERT_LE(rows, limits_.max_rows);
    ASSERT_TRUE(limits_.max_prompts == 0 || prompts <= limits_.max_prompts) << prompts;
    if (!running.empty()) {
      ASSERT_TRUE(std::ranges::any_of(pieces, [&](const Piece& p) { return p.id == running[0]; }))
          << "the first of the running ones waits";
    }
    scheduler_->verify();
    write(pieces);
    std::map<RequestId, int> chosen;
    for (const Piece& p : pieces) {
      if (p.last) chosen[p.id] = below(2);
    }
    if (below(20) == 0) cancel();
    complete(chosen);
    scheduler_->verify();
    last_pieces_ = pieces;
  }

  void finish() {
    for (int steps = 0; !live_.empty(); ++steps) {
      ASSERT_LT(steps, 20000) << "requests never end";
      std::vector<Piece> pieces = scheduler_->decide();
      write(pieces);
      complete(choices(pieces, 1));
    }
    ASSERT_TRUE(scheduler_->is_idle());
    ASSERT_EQ(scheduler_->num_available_blocks(), limits_.num_blocks);
  }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  struct Live {
    std::vector<int> tokens;
    std::int64_t left = 0;
    std::string salt;
  };
  // What a token's place in a block holds: all tokens up to it.
  using Content = std::pair<std::string, std::vector<int>>;

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  void add() {
    auto most = static_cast<int>(scheduler_->most_tokens());
    Live l{.tokens = {}, .left = 1 + below(std::min(most, 12)), .salt = below(4) == 0 ? "s" : ""};
    int count = 1 + below(most - static_cast<int>(l.left) + 1);
    for (int i = 0; i < count; ++i) l.tokens.push_back(below(8) == 0 ? 1 : 0);
    RequestId id = scheduler_->add({.tokens = l.tokens,
                                    .max_tokens = l.left,
                                    .priority = below(8) == 0 ? 1 : 0,
                                    .salt = l.salt,
                                    .every_row = below(5) == 0});
    live_[id] = l;
  }
  void cancel() {
    if (live_.empty()) return;
    auto it = std::next(live_.begin(), below(static_cast<int>(live_.size())));
    scheduler_->cancel(it->first);
    live_.erase(it);
  }
  void complete(const std::map<RequestId, int>& chosen) {
    scheduler_->complete(chosen);
    for (auto [id, token] : chosen) {
      auto it = live_.find(id);
      if (it == live_.end()) continue;
      it->second.tokens.push_back(token);
      if (--it->second.left == 0) live_.erase(it);
    }
    for (const auto& [id, l] : live_) ASSERT_TRUE(scheduler_->has(id)) << "a request is lost";
  }
  std::vector<RequestId> oldest_running() const {
    for (const Piece& p : last_pieces_) {
      if (live_.contains(p.id)) return {p.id};
    }
    return {};
  }

  Content content(const Live& l, std::int64_t position) const {
    return {l.salt, {l.tokens.begin(), l.tokens.begin() + position + 1}};
  }
  // What stands before a piece is what was computed from these very tokens.
  void check_content(const Piece& p, const Live& l) {
    std::span<const int> blocks = scheduler_->blocks(p.id);
    ASSERT_GE(static_cast<std::int64_t>(blocks.size()) * limits_.block_tokens, p.first + p.count);
    for (std::int64_t t = std::max<std::int64_t>(p.first - 3, 0); t < p.first; ++t) {
      ASSERT_EQ(memory_.at(place(blocks, t)), content(l, t)) << "another request's keys";
    }
  }
  void write(const std::vector<Piece>& pieces) {
    for (const Piece& p : pieces) {
      auto it = live_.find(p.id);
      if (it == live_.end()) continue;
      std::span<const int> blocks = scheduler_->blocks(p.id);
      for (std::int64_t t = p.first; t < p.first + p.count; ++t) {
        memory_[place(blocks, t)] = content(it->second, t);
      }
    }
  }
  std::int64_t place(std::span<const int> blocks, std::int64_t t) const {
    std::int64_t size = limits_.block_tokens;
    return blocks[static_cast<std::size_t>(t / size)] * size + t % size;
  }

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  std::optional<Scheduler> scheduler_;
  std::map<RequestId, Live> live_;
  std::map<std::int64_t, Content> memory_;
  std::vector<Piece> last_pieces_;
};

TEST(Scheduler, KeepsItsPromisesWhateverComes) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kTraces = 500, kSteps = 2000;  // a million steps
  std::int64_t preemptions = 0, hits = 0;
  for (int i = 0; i < kTraces; ++i) {
    SCOPED_TRACE("trace " + std::to_string(i));
    Trace trace(seed + static_cast<std::uint64_t>(i));
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_NO_FATAL_FAILURE(trace.step());
    }
    ASSERT_NO_FATAL_FAILURE(trace.finish());
    preemptions += trace.scheduler().counters().preemptions;
    hits += trace.scheduler().counters().prefix_hits;
  }
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(hits, 1000);
}

}  // namespace
}  // namespace stretto
