// Steps that are decided while the one before is under way, beside steps one after the other:
// requests with every kind of option, in company and alone, hear the same to the last bit. If this
// fails, an answer depends on when its tokens were known.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/engine/model_files.h"
#include "stretto/engine/step_driver.h"
#include "stretto/model/transformer/cpu_batch.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostRows = 48, kPages = 7;

// Every second token, but after three of them any.
class EverySecond : public TokenConstraint {
 public:
  explicit EverySecond(std::int64_t vocab) : bits_(static_cast<std::size_t>((vocab + 31) / 32)) {}
  Allowed after(std::span<const int> generated) override {
    std::fill(bits_.begin(), bits_.end(), generated.size() >= 3 ? ~0u : 0x55555555u);
    return {.bits = bits_, .is_complete = generated.size() == 9};
  }

 private:
  std::vector<std::uint32_t> bits_;
};

struct Asked {
  std::vector<int> prompt;
  std::int64_t max_tokens = 1;
  SamplingParams sampling;
  bool constrained = false, looks_at_logits = false;
  int num_logprobs = -1, num_prompt_logprobs = -1, priority = 0;
  int stop_below = 0;   // tokens that are the last one wanted
  int gone_after = -1;     // tokens
  int gone_in_round = -1;  // once its step is decided
  int late_after_ms = -1;

  // It may hear a token more or less.
  bool goes() const { return gone_after > 0 || gone_in_round >= 0 || late_after_ms >= 0; }
};

std::vector<Asked> asked_by_lot(std::mt19937_64& random, int vocab) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<int> start;
  for (int i = 0; i < 200; ++i) start.push_back(2 + below(vocab - 2));
  std::vector<Asked> out(60);
  for (Asked& a : out) {
    if (below(2) == 0) a.prompt.assign(start.begin(), start.begin() + 1 + below(200));
    for (int n = 1 + below(below(3) == 0 ? 120 : 20); n > 0; --n) {
      a.prompt.push_back(2 + below(vocab - 2));
    }
    a.max_tokens = 1 + below(40);
    a.sampling.seed = random();
    if (below(2) == 0) a.sampling.temperature = 0.9;
    if (below(4) == 0) a.sampling.top_p = 0.9;
    if (below(4) == 0) a.sampling.repetition_penalty = 1.3;
    if (below(4) == 0) a.sampling.frequency_penalty = 0.7;
    if (below(6) == 0) a.sampling = {.min_tokens = 5, .ends = {7, 8, 9}};
    a.constrained = below(6) == 0;
    a.looks_at_logits = below(20) == 0;
    if (below(3) == 0) a.num_logprobs = below(4);
    if (below(10) == 0) a.num_prompt_logprobs = below(3);
    if (below(4) == 0) a.stop_below = vocab / 12;
    if (below(6) == 0) a.gone_after = below(6);
    a.priority = below(3);
    if (below(10) == 0) a.gone_in_round = below(150);
    if (below(16) == 0) a.late_after_ms = below(300);
  }
  return out;
}

struct Heard {
  std::vector<TokenLogprob> tokens, prompt;
  std::vector<ServedRequest::End> ends;
};

struct Course {
  Scheduler::Counters counters;
  std::int64_t ahead = 0;  // rows of which the host did not know the token
};

std::vector<Heard> serve(BatchModel& model, const std::vector<Asked>& asked, int at_once,
                         bool ahead, Course& course) {
  std::vector<Heard> out(asked.size());
  BatchLoop loop({.max_running = at_once,
                  .max_rows = static_cast<int>(kMostRows),
                  .num_blocks = static_cast<int>(kPages),
                  .prefix_caching = at_once > 1,
                  .most_waits = at_once > 1 ? 20 : 0},
                 model.shape().config->vocab_size);
  std::vector<BatchLoop::Request> requests;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Asked& a = asked[i];
    auto request = std::make_shared<ServedRequest>();
    request->prompt = a.prompt;
    request->max_tokens = a.max_tokens;
    request->sampling = a.sampling;
    request->num_logprobs = a.num_logprobs;
    request->num_prompt_logprobs = a.num_prompt_logprobs;
    request->priority = a.priority;
    if (a.constrained) {
      request->constraint = std::make_shared<EverySecond>(model.shape().config->vocab_size);
    }
    if (a.looks_at_logits) request->on_logits = [](std::span<const float>) {};
    Heard* heard = &out[i];
    request->on_prompt = [heard](const TokenLogprob& t) { heard->prompt.push_back(t); };
    request->on_token = [heard, a, own = request.get()](const TokenLogprob& t) {
      EXPECT_TRUE(heard->ends.empty()) << "a token after the end";
      heard->tokens.push_back(t);
      if (std::ssize(heard->tokens) == a.gone_after) own->cancelled = true;
      return t.token >= a.stop_below;
    };
    request->on_end = [heard](ServedRequest::End end, const std::string&) {
      heard->ends.push_back(end);
    };
    if (a.late_after_ms >= 0) {
      request->deadline =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(a.late_after_ms);
    }
    requests.push_back(request);
  }
  int rounds = 0;
  StepDriver driver(model, loop, ahead, [&](const StepDriver::Order& order) {
    for (const BatchOrder::Part& p : order->parts) course.ahead += p.source >= 0;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].gone_in_round == rounds) requests[i]->cancelled = true;
    }
  });
  for (std::size_t next = 0; next < requests.size() || !loop.is_idle(); ++rounds) {
    while (next < requests.size() && loop.room() > 0) loop.add(requests[next++]);
    driver.round();
    loop.scheduler().verify();
    if (rounds > 100'000) throw Error("requests never end");
  }
  EXPECT_TRUE(loop.scheduler().is_idle());
  EXPECT_EQ(loop.scheduler().num_available_blocks(), kPages);
  course.counters = loop.scheduler().counters();
  return out;
}

void expect_same(const TokenLogprob& a, const TokenLogprob& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.logprob, b.logprob);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.top, b.top);
}

// Each hears what it hears alone.
void expect_as_alone(BatchModel& model, const std::vector<Asked>& asked,
                     const std::vector<std::vector<Heard>>& in_company) {
  for (std::size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    Asked of_one = asked[i];
    of_one.gone_in_round = of_one.late_after_ms = -1;
    Course course;
    const Heard alone = serve(model, {of_one}, 1, false, course).at(0);
    for (const std::vector<Heard>& all : in_company) {
      const Heard& heard = all[i];
      ASSERT_EQ(heard.ends.size(), 1u);
      if (!asked[i].goes()) {
        EXPECT_EQ(heard.ends, alone.ends);
        ASSERT_EQ(heard.tokens.size(), alone.tokens.size());
        ASSERT_EQ(heard.prompt.size(), alone.prompt.size());
      }
      const std::size_t both = std::min(heard.tokens.size(), alone.tokens.size());
      for (std::size_t t = 0; t < both; ++t) {
        SCOPED_TRACE("token " + std::to_string(t));
        expect_same(heard.tokens[t], alone.tokens[t]);
      }
      ASSERT_LE(heard.prompt.size(), alone.prompt.size());
      for (std::size_t t = 0; t < heard.prompt.size(); ++t) {
        expect_same(heard.prompt[t], alone.prompt[t]);
      }
    }
  }
}

BatchOptions options(bool ahead) {
  return {.max_rows = kMostRows,
          .max_tokens = 512,
          .cache = {.page = 64, .num_pages = kPages, .sequences = 12},
          .ahead = ahead};
}

class AheadTest : public testing::TestWithParam<int> {};

TEST_P(AheadTest, AnswersAreThoseOfStepsOneAfterTheOther) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files("checkpoints/debian-llama-draft-1m");
  World world({.size = GetParam()});
  world.run([&](Rank& rank) {
    std::mt19937_64 random(seed);
    std::vector<Asked> asked = asked_by_lot(random, static_cast<int>(files.config.vocab_size));
    if (rank.size() > 1) {  // each with a loop of its own, and a clock
      for (Asked& a : asked) a.late_after_ms = -1;
    }
    BatchModel model(rank, files.config, files.checkpoint, options(true));
    Course ahead, serial;
    const std::vector<Heard> together = serve(model, asked, 12, true, ahead);
    const std::vector<Heard> in_turn = serve(model, asked, 12, false, serial);
    EXPECT_GT(ahead.ahead, 20);
    EXPECT_EQ(serial.ahead, 0);
    EXPECT_GT(ahead.counters.preemptions, 0);
    EXPECT_GT(ahead.counters.prefix_hits, 0);
    expect_as_alone(model, asked, {together, in_turn});
  });
}

// The order of things on GPUs: a step begins before the one before is told of, or looked at.
class BesideTheHost : public CpuBatchRunner {
 public:
  using CpuBatchRunner::CpuBatchRunner;
  bool runs_beside_host() const override { return true; }
};

TEST(AheadBesideTheHost, AnswersAreThoseOfStepsOneAfterTheOther) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files("checkpoints/debian-llama-draft-1m");
  World world({.size = 1});
  world.run([&](Rank& rank) {
    std::mt19937_64 random(seed);
    const std::vector<Asked> asked =
        asked_by_lot(random, static_cast<int>(files.config.vocab_size));
    auto model_for = [&](bool ahead) {
      const ModelShape shape = batch_shape(files.config, 1, options(ahead));
      return BatchModel(std::make_unique<BesideTheHost>(rank, shape, files.checkpoint), kMostRows);
    };
    BatchModel of_ahead = model_for(true), of_serial = model_for(false);
    Course ahead, serial;
    const std::vector<Heard> together = serve(of_ahead, asked, 12, true, ahead);
    const std::vector<Heard> in_turn = serve(of_serial, asked, 12, false, serial);
    EXPECT_GT(ahead.ahead, 20);
    EXPECT_EQ(serial.ahead, 0);
    expect_as_alone(of_serial, asked, {together, in_turn});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AheadTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace stretto
