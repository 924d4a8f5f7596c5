// What requests hear, and when. If these fail, an answer depends on whether its tokens were told
// before the next step, beside it or ahead of it, or a client waits for an end that never comes.
#include "stretto/engine/batch_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

constexpr int kVocab = 50;

struct Wish {
  std::vector<int> prompt;
  std::int64_t max_tokens = 0;
  int stop_token = 0;           // that is the last one wanted, wherever it comes
  std::int64_t cancel_at = -1;  // before the step of this number
};

struct Heard {
  std::vector<int> tokens;
  std::vector<ServedRequest::End> ends;
  bool after_enough = false, after_end = false;
};

std::vector<Wish> random_wishes(std::mt19937_64& random) {
  auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  std::vector<Wish> out(static_cast<std::size_t>(1 + below(24)));
  for (Wish& w : out) {
    for (int n = 1 + below(90); n > 0; --n) w.prompt.push_back(below(kVocab));
    w.max_tokens = 1 + below(30);
    w.stop_token = below(3) > 0 ? below(kVocab) : -1;
    if (below(8) == 0) w.cancel_at = below(40);
  }
  return out;
}

// Steps one after the other, whose tokens are told before or beside the next one; or each decided
// while the one before is under way.
enum class Way : std::uint8_t { kBeforeTheNextStep, kBesideIt, kAhead };

struct Counts {
  std::int64_t preemptions = 0, ahead = 0, missed = 0, told = 0;
};

// A device whose tokens are those of a request's draws alone, as a model's are: all logits are
// equal. Of some rows it says that it could not choose.
class FakeDevice {
 public:
  FakeDevice(BatchLoop& loop, std::uint64_t seed) : loop_(loop), random_(seed) {}

  // What is wanted of a step; whether that is nothing but tokens.
  bool choose(const BatchOrder& order) {
    rows_.clear();
    std::int64_t wanted = 0;
    bool all = true;
    for (std::size_t part = 0; part < order.parts.size(); ++part) {
      const BatchOrder::Part& p = order.parts[part];
      EXPECT_LT(p.source, num_choices_) << "a token that the last step did not choose";
      if (p.wanted == 0) continue;
      Row row{.part = part, .row = std::ssize(p.tokens) - 1};
      ChoiceWish wish;
      row.want = loop_.want(part, row.row, wish);
      std::vector<float> logits = flat_;
      if (row.want == RowVisitor::Want::kToken) {
        row.token = choose_token(logits, wish, scratch_).token;
        ++wanted;
      }
      all = all && row.want != RowVisitor::Want::kLogits;
      rows_.push_back(row);
    }
    num_choices_ = wanted;
    return all;
  }
  // What came of it; `may_miss`: the logits are gone.
  void finish(bool may_miss, Counts& counts) {
    for (const Row& row : rows_) {
      if (row.want == RowVisitor::Want::kLogits) loop_.take(row.part, row.row, flat_);
      if (row.want != RowVisitor::Want::kToken) continue;
      if (may_miss && random_() % 16 == 0) {
        loop_.miss(row.part, row.row);
        ++counts.missed;
        continue;
      }
      ChoiceResult choice{};
      choice.status = ChoiceStatus::kChosen;
      choice.token = static_cast<std::uint32_t>(row.token);
      loop_.take_choice(row.part, row.row, choice);
    }
  }

 private:
  struct Row {
    std::size_t part = 0;
    std::int64_t row = 0;
    RowVisitor::Want want = RowVisitor::Want::kNothing;
    int token = 0;
  };

  BatchLoop& loop_;
  std::mt19937_64 random_;
  std::vector<float> flat_ = std::vector<float>(kVocab, 0.f);
  ChoiceScratch scratch_;
  std::vector<Row> rows_;
  std::int64_t num_choices_ = 0;
};

std::vector<Heard> serve(const std::vector<Wish>& wishes, Way way, Counts& counts,
                         std::uint64_t seed = 1) {
  BatchLoop loop({.max_running = 8, .max_rows = 40, .num_blocks = 12, .block_tokens = 16}, kVocab);
  FakeDevice device(loop, seed);
  std::vector<Heard> out(wishes.size());
  std::vector<BatchLoop::Request> requests;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const Wish& w = wishes[i];
    auto request = std::make_shared<ServedRequest>();
    request->prompt = w.prompt;
    request->max_tokens = w.max_tokens;
    request->sampling = {.temperature = 1, .seed = i};
    Heard& heard = out[i];
    request->on_token = [&heard, stop = w.stop_token](const TokenLogprob& t) {
      heard.after_end |= !heard.ends.empty();
      heard.after_enough |= !heard.tokens.empty() && heard.tokens.back() == stop;
      heard.tokens.push_back(t.token);
      return t.token != stop;
    };
    request->on_end = [&heard](ServedRequest::End end, const std::string&) {
      heard.ends.push_back(end);
    };
    requests.push_back(request);
  }
  std::size_t next = 0;
  bool under_way = false;
  auto complete = [&](bool may_miss) {
    device.finish(may_miss, counts);
    loop.complete();
    under_way = false;
  };
  for (std::int64_t step = 0; next < requests.size() || !loop.is_idle(); ++step) {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      if (wishes[i].cancel_at == step) requests[i]->cancelled = true;
    }
    while (next < requests.size() && loop.room() > 0) loop.add(requests[next++]);
    const BatchOrder order = loop.decide();
    for (const BatchOrder::Part& p : order.parts) counts.ahead += p.source >= 0;
    if (way == Way::kBesideIt || order.parts.empty()) loop.tell();
    if (under_way) complete(!order.parts.empty());
    if (!order.parts.empty()) {
      under_way = device.choose(order) && way == Way::kAhead;
      if (way == Way::kAhead) loop.tell();  // before rows of this step are taken
      if (!under_way) complete(false);
    }
    if (way != Way::kBesideIt) loop.tell();
    if (step > 100'000) break;
  }
  loop.tell();
  EXPECT_TRUE(loop.scheduler().is_idle());
  EXPECT_EQ(loop.scheduler().num_available_blocks(), loop.scheduler().num_blocks());
  counts.preemptions += loop.scheduler().counters().preemptions;
  return out;
}

TEST(BatchLoop, TellsTheSameBesideTheNextStepAndAheadOfIt) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Counts before_it, beside_it, ahead_of_it;
  std::int64_t stopped = 0, cancelled = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<Wish> wishes = random_wishes(random);
    const std::vector<Heard> before = serve(wishes, Way::kBeforeTheNextStep, before_it);
    const std::vector<Heard> beside = serve(wishes, Way::kBesideIt, beside_it);
    const std::vector<Heard> ahead = serve(wishes, Way::kAhead, ahead_of_it, random());
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      SCOPED_TRACE("round " + std::to_string(round) + " request " + std::to_string(i));
      for (const Heard* heard : {&before[i], &beside[i], &ahead[i]}) {
        ASSERT_EQ(heard->ends.size(), 1u);
        EXPECT_FALSE(heard->after_end || heard->after_enough);
        if (heard->ends[0] == ServedRequest::End::kLength) {
          EXPECT_EQ(std::ssize(heard->tokens), wishes[i].max_tokens);
        }
        if (heard->ends[0] == ServedRequest::End::kEnough) {
          EXPECT_EQ(heard->tokens.back(), wishes[i].stop_token);
        }
      }
      stopped += beside[i].ends[0] == ServedRequest::End::kEnough;
      cancelled += ahead[i].ends[0] == ServedRequest::End::kCancelled;
      for (const Heard* other : {&beside[i], &ahead[i]}) {
        const auto [own, others] = std::ranges::mismatch(before[i].tokens, other->tokens);
        if (wishes[i].cancel_at >= 0) {
          // When others end decides in which step a cancelled one is.
          EXPECT_TRUE(own == before[i].tokens.end() || others == other->tokens.end());
          continue;
        }
        EXPECT_EQ(before[i].tokens, other->tokens);
        EXPECT_EQ(before[i].ends, other->ends);
      }
    }
  }
  EXPECT_GT(before_it.preemptions, 100);
  EXPECT_GT(ahead_of_it.preemptions, 100);
  EXPECT_EQ(before_it.ahead, 0);
  EXPECT_GT(ahead_of_it.ahead, 10'000);
  EXPECT_GT(ahead_of_it.missed, 1000);
  EXPECT_GT(stopped, 100);
  EXPECT_GT(cancelled, 20);
}

// The last token may be one that ends the answer, too.
TEST(BatchLoop, EnoughAtTheLastTokenIsEnough) {
  for (Way way : {Way::kBeforeTheNextStep, Way::kBesideIt, Way::kAhead}) {
    Counts counts;
    Wish wish{.prompt = {1, 2, 3}, .max_tokens = 1, .stop_token = -1};
    wish.stop_token = serve({wish}, way, counts)[0].tokens.at(0);
    EXPECT_EQ(serve({wish}, way, counts)[0].ends, std::vector{ServedRequest::End::kEnough});
  }
}

}  // namespace
}  // namespace stretto
