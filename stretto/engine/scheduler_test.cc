// Requests in lots, tiny caches, cancellations between and during steps: a scheduler that loses a
// block or a request stops a server, one that lets a request starve stops a client.
#include "stretto/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
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

TEST(Scheduler, WhoHasWaitedForLongComesBeforeHigherPriorities) {
  for (int most_waits : {0, 20}) {
    Scheduler s({.max_running = 1,
                 .max_rows = 4,
                 .num_blocks = 8,
                 .block_tokens = 4,
                 .most_waits = most_waits});
    const RequestId low = s.add({.tokens = prompt(2), .priority = -5});
    int steps = 0;
    for (; s.has(low) && steps < 200; ++steps) {
      s.add({.tokens = prompt(2), .max_tokens = 3});  // they come faster than they end
      s.complete(choices(s.decide()));
      s.verify();
    }
    EXPECT_EQ(steps, most_waits == 0 ? 200 : 22) << "who runs is not interrupted";
  }
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

// Ahead of tokens.

TEST(Scheduler, DecidesTheNextStepBeforeTokensAreKnown) {
  Scheduler s({.max_running = 2, .max_rows = 8, .num_blocks = 8, .block_tokens = 4});
  RequestId a = s.add({.tokens = prompt(3), .max_tokens = 3});
  EXPECT_FALSE(s.decide().at(0).follows);
  std::vector<Piece> second = s.decide();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(second[0].follows);
  EXPECT_EQ(second[0].first, 3);
  EXPECT_EQ(second[0].count, 1);
  EXPECT_THROW(s.decide(), InternalError) << "two are under way";
  s.complete({{a, 7}});
  EXPECT_TRUE(s.decide().at(0).follows);
  s.complete({{a, 8}});
  EXPECT_TRUE(s.decide().empty()) << "the third token, and the last one, is under way";
  s.complete({{a, 9}});
  EXPECT_TRUE(s.is_idle());
  EXPECT_EQ(s.num_available_blocks(), s.num_blocks());
}

TEST(Scheduler, BlocksOfWhoHasEndedAreFreeAfterTheStepThatHasItsRow) {
  Scheduler s({.max_running = 2, .max_rows = 8, .num_blocks = 2, .block_tokens = 4});
  RequestId a = s.add({.tokens = prompt(4), .max_tokens = 5});
  s.decide();
  s.decide();  // a's second block
  s.complete({{a, 7}});
  s.cancel(a);
  EXPECT_FALSE(s.has(a));
  RequestId b = s.add({.tokens = prompt(3, 2)});
  EXPECT_TRUE(s.decide().empty()) << "a row of a is under way";
  EXPECT_EQ(s.num_available_blocks(), 0);
  s.complete({{a, 8}});
  EXPECT_EQ(s.num_available_blocks(), 2);
  EXPECT_EQ(s.decide().at(0).id, b);
  EXPECT_EQ(s.counters().preemptions, 0);
}

TEST(Scheduler, WhatDoesNotCountIsGivenAgain) {
  Scheduler s({.max_running = 2, .max_rows = 8, .num_blocks = 8, .block_tokens = 4});
  RequestId a = s.add({.tokens = prompt(3), .max_tokens = 3});
  s.decide();
  s.decide();
  s.begin_again(a);
  s.complete({});
  std::vector<Piece> again = s.decide();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].first, 0);
  EXPECT_EQ(again[0].count, 3);
  EXPECT_TRUE(again[0].last);
  s.complete({{a, 7}});  // of the second step, which does not count either
  EXPECT_EQ(s.tokens(a).size(), 3U);
  s.complete({{a, 8}});
  EXPECT_EQ(s.tokens(a).back(), 8);
}

// Draws what clients and devices do, and holds what comes of it against what every request was
// promised. `ahead`: each step is decided while the one before is under way, its tokens not known.
class Trace {
 public:
  Trace(std::uint64_t seed, bool ahead) : random_(seed), ahead_(ahead) {
    limits_.max_running = 1 + below(6);
    limits_.max_rows = limits_.max_running + below(12);
    limits_.max_prompts = below(3);
    limits_.num_blocks = 6 + below(20);
    limits_.block_tokens = 1 + below(5);
    limits_.prefix_caching = below(4) != 0;
    if (below(2) == 0) limits_.most_waits = 1 + below(60);
    scheduler_.emplace(limits_);
  }

  void step() {
    if (below(3) == 0 && live_.size() < 12) add();
    if (below(40) == 0) cancel();
    ASSERT_NO_FATAL_FAILURE(decide());
    scheduler_->verify();
    // The device may be as far as it likes.
    ASSERT_NO_FATAL_FAILURE(run(below(2) == 0 ? steps_.size() : 0));
    if (below(20) == 0) cancel();
    const std::size_t most = ahead_ && decided_ && below(10) != 0 ? 1 : 0;  // at times none is
    while (steps_.size() > most) ASSERT_NO_FATAL_FAILURE(complete());
  }

  void finish() {
    for (int steps = 0; !live_.empty() || !steps_.empty(); ++steps) {
      ASSERT_LT(steps, 20000) << "requests never end";
      ASSERT_NO_FATAL_FAILURE(decide());
      while (steps_.size() > (ahead_ && decided_ ? 1u : 0u)) {
        ASSERT_NO_FATAL_FAILURE(complete());
      }
    }
    ASSERT_TRUE(scheduler_->is_idle());
    ASSERT_EQ(scheduler_->num_available_blocks(), limits_.num_blocks);
  }
  const Scheduler& scheduler() const { return *scheduler_; }
  std::int64_t num_ahead() const { return num_ahead_; }
  std::int64_t num_begun_again() const { return num_begun_again_; }

 private:
  struct Live {
    std::vector<int> tokens;     // known
    std::vector<int> on_device;  // with those that the device has chosen since
    std::int64_t left = 0;       // tokens that it may get
    std::int64_t last_rows = 0;  // the last step that had any, or before which it came
    std::string salt;
  };
  struct Step {
    std::vector<Piece> pieces;
    std::vector<std::vector<int>> blocks;  // by piece, as they were when it was decided
    std::map<RequestId, int> chosen;       // once it has run
    std::set<RequestId> in_vain;
    bool has_run = false;
  };
  // What a token's place in a block holds: all tokens up to it.
  using Content = std::pair<std::string, std::vector<int>>;

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  void add() {
    auto most = static_cast<int>(scheduler_->most_tokens());
    Live l{.tokens = {},
           .on_device = {},
           .left = 1 + below(std::min(most, 12)),
           .salt = below(4) == 0 ? "s" : ""};
    int count = 1 + below(most - static_cast<int>(l.left) + 1);
    for (int i = 0; i < count; ++i) l.tokens.push_back(below(8) == 0 ? 1 : 0);
    l.on_device = l.tokens;
    l.last_rows = num_decided_;
    RequestId id = scheduler_->add({.tokens = l.tokens,
                                    .max_tokens = l.left,
                                    .priority = below(3) == 0 ? 1 : 0,
                                    .salt = l.salt,
                                    .every_row = below(5) == 0});
    live_[id] = l;
  }
  void cancel() {
    if (live_.empty()) return;
    auto it = std::next(live_.begin(), below(static_cast<int>(live_.size())));
    scheduler_->cancel(it->first);
    EXPECT_FALSE(scheduler_->has(it->first));
    live_.erase(it);
  }

  std::int64_t pending(RequestId id) const {
    std::int64_t count = 0;
    for (const Step& step : steps_) {
      for (const Piece& p : step.pieces) {
        count += p.id == id && p.last && !step.in_vain.contains(id) ? 1 : 0;
      }
    }
    return count;
  }

  void decide() {
    const std::optional<RequestId> first = scheduler_->first_running();
    // It waits for the step under way, as its last token comes of that.
    const bool is_full = first && pending(*first) == live_.at(*first).left;
    const std::vector<Piece> pieces = scheduler_->decide();
    ASSERT_TRUE(!steps_.empty() || pieces.empty() == live_.empty());
    std::int64_t rows = 0, prompts = 0;
    ++num_decided_;
    for (const Piece& p : pieces) {
      ASSERT_TRUE(live_.contains(p.id)) << "a request that has ended";
      live_.at(p.id).last_rows = num_decided_;
      rows += p.count;
      prompts += p.count > 1;
      num_ahead_ += p.follows;
      ASSERT_NO_FATAL_FAILURE(check(p));
    }
    ASSERT_LE(rows, limits_.max_rows);
    ASSERT_TRUE(limits_.max_prompts == 0 || prompts <= limits_.max_prompts) << prompts;
    if (first != std::exchange(last_first_, first)) first_waits_ = 0;
    if (first && !is_full) {
      auto is_first = [&](const Piece& p) { return p.id == *first; };
      first_waits_ = std::ranges::any_of(pieces, is_first) ? 0 : first_waits_ + 1;
      // Ahead it may wait for blocks of others who end.
      ASSERT_LE(first_waits_, ahead_ ? 6 : 0) << "the first one waits";
    }
    for (const auto& [id, l] : live_) {
      // Those who were there before have ended by then: of 12, each of 12 tokens after its prompt.
      const std::int64_t most = limits_.most_waits + 12 * (12 + 2 * scheduler_->most_tokens());
      ASSERT_TRUE(limits_.most_waits == 0 || num_decided_ - l.last_rows <= most) << "one waits";
    }
    decided_ = !pieces.empty();
    if (!decided_) return;
    Step step{.pieces = pieces, .blocks = {}, .chosen = {}, .in_vain = {}};
    for (const Piece& p : pieces) {
      std::span<const int> blocks = scheduler_->blocks(p.id);
      ASSERT_GE(std::ssize(blocks) * limits_.block_tokens, p.first + p.count);
      step.blocks.emplace_back(blocks.begin(), blocks.end());
    }
    steps_.push_back(step);
  }

  void check(const Piece& p) const {
    const Live& l = live_.at(p.id);
    std::span<const int> tokens = scheduler_->tokens(p.id);
    ASSERT_TRUE(std::ranges::equal(tokens, l.tokens)) << "its tokens are kept";
    ASSERT_GE(p.count, 1);
    const std::int64_t known = std::ssize(tokens), waits = pending(p.id);
    ASSERT_EQ(p.follows, p.first == known);
    ASSERT_EQ(waits, p.follows ? 1 : 0) << "a row whose token is known already, or is not chosen";
    ASSERT_LE(p.first + p.count, known + waits);
    ASSERT_EQ(p.last, p.first + p.count == known + waits);
    ASSERT_GT(l.left, waits) << "a row for a token that is one too many";
  }

  // The device makes the first `count` steps under way: it reads and writes blocks, and chooses.
  void run(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (std::exchange(steps_[i].has_run, true)) continue;
      for (std::size_t p = 0; p < steps_[i].pieces.size(); ++p) {
        ASSERT_NO_FATAL_FAILURE(run(steps_[i], p));
      }
    }
  }
  void run(Step& step, std::size_t index) {
    const Piece& p = step.pieces[index];
    const std::vector<int>& blocks = step.blocks[index];
    auto it = live_.find(p.id);
    const bool counts = it != live_.end() && !step.in_vain.contains(p.id);
    for (std::int64_t t = p.first; t < p.first + p.count; ++t) {
      memory_[place(blocks, t)] = counts ? content(it->second, t) : Content{"in vain", {}};
    }
    if (!counts) return;
    // What stands before a piece is what was computed from these very tokens.
    for (std::int64_t t = std::max<std::int64_t>(p.first - 3, 0); t < p.first; ++t) {
      ASSERT_EQ(memory_.at(place(blocks, t)), content(it->second, t)) << "another request's keys";
    }
    if (!p.last) return;
    ASSERT_EQ(std::ssize(it->second.on_device), p.first + p.count) << "not its last row";
    step.chosen[p.id] = below(2);
    it->second.on_device.push_back(step.chosen[p.id]);
  }

  void complete() {
    ASSERT_NO_FATAL_FAILURE(run(1));
    std::map<RequestId, int> chosen = steps_.front().chosen;
    for (const Piece& p : steps_.front().pieces) {
      if (!p.last || below(50) != 0) continue;  // the device could not choose
      scheduler_->begin_again(p.id);
      if (auto it = live_.find(p.id); it != live_.end()) it->second.on_device = it->second.tokens;
      chosen.erase(p.id);
      for (Step& step : steps_) step.in_vain.insert(p.id);
      ++num_begun_again_;
    }
    const std::set<RequestId> in_vain = steps_.front().in_vain;
    steps_.pop_front();
    scheduler_->complete(chosen);
    for (auto [id, token] : chosen) {
      auto it = live_.find(id);
      if (it == live_.end() || in_vain.contains(id)) continue;
      it->second.tokens.push_back(token);
      if (--it->second.left == 0) live_.erase(it);
    }
    for (const auto& [id, l] : live_) ASSERT_TRUE(scheduler_->has(id)) << "a request is lost";
    scheduler_->verify();
  }

  static Content content(const Live& l, std::int64_t position) {
    return {l.salt, {l.on_device.begin(), l.on_device.begin() + position + 1}};
  }
  std::int64_t place(const std::vector<int>& blocks, std::int64_t t) const {
    std::int64_t size = limits_.block_tokens;
    return blocks[static_cast<std::size_t>(t / size)] * size + t % size;
  }

  std::mt19937_64 random_;
  const bool ahead_;
  SchedulerLimits limits_;
  std::optional<Scheduler> scheduler_;
  std::map<RequestId, Live> live_;
  std::map<std::int64_t, Content> memory_;
  std::deque<Step> steps_;  // under way
  bool decided_ = false;    // the last decide() gave one
  std::int64_t num_ahead_ = 0, num_begun_again_ = 0;
  std::optional<RequestId> last_first_;
  std::int64_t num_decided_ = 0;
  int first_waits_ = 0;
};

TEST(Scheduler, KeepsItsPromisesWhateverComes) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kTraces = 500, kSteps = 2000;  // a million steps
  for (bool ahead : {false, true}) {
    SCOPED_TRACE(ahead ? "ahead" : "one after the other");
    std::int64_t preemptions = 0, hits = 0, followed = 0, begun_again = 0;
    for (int i = 0; i < kTraces / 2; ++i) {
      SCOPED_TRACE("trace " + std::to_string(i));
      Trace trace(seed + static_cast<std::uint64_t>(i), ahead);
      for (int step = 0; step < kSteps; ++step) {
        ASSERT_NO_FATAL_FAILURE(trace.step());
      }
      ASSERT_NO_FATAL_FAILURE(trace.finish());
      preemptions += trace.scheduler().counters().preemptions;
      hits += trace.scheduler().counters().prefix_hits;
      followed += trace.num_ahead();
      begun_again += trace.num_begun_again();
    }
    EXPECT_GT(preemptions, 1000);
    EXPECT_GT(hits, 1000);
    EXPECT_GT(begun_again, 1000);
    EXPECT_EQ(followed > 1000, ahead) << followed;
  }
}

}  // namespace
}  // namespace stretto
