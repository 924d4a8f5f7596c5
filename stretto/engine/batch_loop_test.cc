// What requests hear, and when. If these fail, an answer depends on whether its tokens were told
// before the next step or beside it, or a client waits for an end that never comes.
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

enum class Told : std::uint8_t { kBeforeTheNextStep, kBesideIt };

std::vector<Heard> serve(const std::vector<Wish>& wishes, Told told, std::int64_t* preemptions) {
  BatchLoop loop({.max_running = 8, .max_rows = 40, .num_blocks = 12, .block_tokens = 16}, kVocab);
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
  for (std::int64_t step = 0; next < requests.size() || !loop.is_idle(); ++step) {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      if (wishes[i].cancel_at == step) requests[i]->cancelled = true;
    }
    while (next < requests.size() && loop.room() > 0) loop.add(requests[next++]);
    const BatchOrder order = loop.decide();
    if (told == Told::kBesideIt || order.parts.empty()) loop.tell();
    for (std::size_t part = 0; part < order.parts.size(); ++part) {
      const BatchOrder::Part& p = order.parts[part];
      const auto last = static_cast<std::int64_t>(p.tokens.size()) - 1;
      ChoiceWish wish;
      if (p.wanted == 0 || loop.want(part, last, wish) != RowVisitor::Want::kToken) continue;
      // Of the request's draws alone, as a model's tokens are.
      ChoiceResult choice{};
      choice.status = ChoiceStatus::kChosen;
      choice.token = static_cast<std::uint32_t>(wish.row.random % kVocab);
      loop.take_choice(part, last, choice);
    }
    if (!order.parts.empty()) loop.complete();
    if (told == Told::kBeforeTheNextStep) loop.tell();
    if (step > 100'000) break;
  }
  loop.tell();
  *preemptions += loop.scheduler().counters().preemptions;
  return out;
}

TEST(BatchLoop, TellsTheSameBesideTheNextStepAsBeforeIt) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::int64_t preemptions = 0, stopped = 0, cancelled = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<Wish> wishes = random_wishes(random);
    const std::vector<Heard> before = serve(wishes, Told::kBeforeTheNextStep, &preemptions);
    const std::vector<Heard> beside = serve(wishes, Told::kBesideIt, &preemptions);
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      for (const Heard* heard : {&before[i], &beside[i]}) {
        ASSERT_EQ(heard->ends.size(), 1u) << "round " << round << " request " << i;
        EXPECT_FALSE(heard->after_end || heard->after_enough) << round << " " << i;
        if (heard->ends[0] == ServedRequest::End::kLength) {
          EXPECT_EQ(std::ssize(heard->tokens), wishes[i].max_tokens);
        }
        if (heard->ends[0] == ServedRequest::End::kEnough) {
          EXPECT_EQ(heard->tokens.back(), wishes[i].stop_token);
        }
      }
      // When others end decides in which step a cancelled one is.
      if (wishes[i].cancel_at >= 0) {
        cancelled += beside[i].ends[0] == ServedRequest::End::kCancelled;
        continue;
      }
      EXPECT_EQ(before[i].tokens, beside[i].tokens) << "round " << round << " request " << i;
      EXPECT_EQ(before[i].ends, beside[i].ends) << "round " << round << " request " << i;
      stopped += beside[i].ends[0] == ServedRequest::End::kEnough;
    }
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(stopped, 100);
  EXPECT_GT(cancelled, 20);
}

// The last token may be one that ends the answer, too.
TEST(BatchLoop, EnoughAtTheLastTokenIsEnough) {
  for (Told told : {Told::kBeforeTheNextStep, Told::kBesideIt}) {
    std::int64_t preemptions = 0;
    Wish wish{.prompt = {1, 2, 3}, .max_tokens = 1, .stop_token = -1};
    wish.stop_token = serve({wish}, told, &preemptions)[0].tokens.at(0);
    EXPECT_EQ(serve({wish}, told, &preemptions)[0].ends, std::vector{ServedRequest::End::kEnough});
  }
}

}  // namespace
}  // namespace stretto
