// Sampling of many requests on GPUs (simulated ones will do, docs/internals): where the device
// chooses tokens they are those that the host chooses from the same logits, alone as in company. If
// this fails, a client reads other text because of where a seed is drawn, or of who else asks.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/engine/batch_loop.h"
#include "stretto/engine/model_files.h"
#include "stretto/engine/step_driver.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/gpu/gpu_batch.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto {
namespace {

constexpr std::int64_t kRows = 24;  // the programs of gpu_batch_test.cc
constexpr std::int64_t kTokens = 4;

// Every third token, after two of them any.
class EveryThird : public TokenConstraint {
 public:
  explicit EveryThird(std::size_t vocab) : bits_((vocab + 31) / 32) {}
  Allowed after(std::span<const int> generated) override {
    for (std::size_t t = 0; t < bits_.size() * 32; ++t) {
      const std::uint32_t bit = std::uint32_t{1} << t % 32;
      if (generated.size() >= 2 || t % 3 == 0) bits_[t / 32] |= bit;
    }
    return {.bits = bits_};
  }

 private:
  std::vector<std::uint32_t> bits_;
};

struct Asked {
  std::vector<int> prompt;
  SamplingParams sampling;
  bool constrained = false;
  int num_logprobs = -1;
};

std::vector<Asked> asked_by_lot(std::uint64_t seed, int vocab) {
  std::mt19937_64 random(seed);
  const std::vector<SamplingParams> all = {
      {},
      {.temperature = 1},
      {.temperature = 0.8, .top_k = 20, .top_p = 0.9, .min_p = 0.02},
      {.temperature = 1.2, .top_p = 0.95, .repetition_penalty = 1.3, .frequency_penalty = 0.5},
      {.presence_penalty = 1.5, .logit_bias = {{5, 2.f}, {9, -100.f}}},
      {.temperature = 1, .allowed_tokens = {11, 12, 13, 14, 15}, .min_tokens = 3, .ends = {12}}};
  std::vector<Asked> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Asked a{.prompt = {}, .sampling = all[i], .constrained = i == 2, .num_logprobs = -1};
    a.sampling.seed = random();
    if (i % 2 == 1) a.num_logprobs = static_cast<int>(i) - 1;
    // Two outgrow a page, so that others give theirs back.
    for (std::size_t n = i < 2 ? 62 : 3 + random() % 6; n > 0; --n) {
      a.prompt.push_back(2 + static_cast<int>(random() % static_cast<unsigned>(vocab - 2)));
    }
    out.push_back(a);
  }
  return out;
}

struct Told {
  std::vector<std::vector<TokenLogprob>> answers;
  BatchLoop::Chosen chosen;
  std::int64_t preemptions = 0;
};

Told serve(BatchModel& model, const std::vector<Asked>& asked, int at_once, bool by_host,
           bool ahead = true) {
  Told out;
  out.answers.resize(asked.size());
  const auto vocab = static_cast<std::size_t>(model.shape().config->vocab_size);
  const auto blocks = static_cast<int>(model.shape().paged.num_pages) - 1;
  BatchLoop loop({.max_running = at_once, .max_rows = kRows, .num_blocks = blocks},
                 model.shape().config->vocab_size);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    auto request = std::make_shared<ServedRequest>();
    request->prompt = asked[i].prompt;
    request->max_tokens = kTokens;
    request->sampling = asked[i].sampling;
    request->num_logprobs = asked[i].num_logprobs;
    if (asked[i].constrained) request->constraint = std::make_shared<EveryThird>(vocab);
    if (by_host) request->on_logits = [](std::span<const float>) {};
    request->on_token = [&to = out.answers[i]](const TokenLogprob& t) {
      to.push_back(t);
      return true;
    };
    request->on_end = [](ServedRequest::End end, const std::string& what) {
      EXPECT_EQ(end, ServedRequest::End::kLength) << what;
    };
    loop.add(request);
  }
  StepDriver driver(model, loop, ahead);
  while (!loop.is_idle()) {
    driver.wait_for_turn();
    driver.round();
  }
  out.chosen = loop.chosen();
  out.preemptions = loop.scheduler().counters().preemptions;
  return out;
}

// `near`: of logarithms, which the host takes of sums in double.
void expect_same(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b,
                 double near) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token) << "token " << i;
    EXPECT_EQ(a[i].rank, b[i].rank) << "token " << i;
    EXPECT_NEAR(a[i].logprob, b[i].logprob, near) << "token " << i;
    ASSERT_EQ(a[i].top.size(), b[i].top.size());
    for (std::size_t k = 0; k < a[i].top.size(); ++k) {
      EXPECT_EQ(a[i].top[k].first, b[i].top[k].first) << "token " << i;
      EXPECT_NEAR(a[i].top[k].second, b[i].top[k].second, near) << "token " << i;
    }
  }
}

class GpuSamplingTest : public testing::TestWithParam<int> {};

TEST_P(GpuSamplingTest, TheDeviceChoosesWhatTheHostWouldAloneAsInCompany) {
  const int ranks = GetParam();
  if (cuda::num_devices() < ranks) GTEST_SKIP() << "needs " << ranks << " GPUs";
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files("checkpoints/debian-llama-draft-1m");
  std::vector<Asked> asked = asked_by_lot(seed, static_cast<int>(files.config.vocab_size));
  if (ranks > 1) asked.erase(asked.begin(), asked.begin() + 4);  // simulated GPUs take turns
  GpuWorld gpus({.size = ranks});
  ModelShape shape =
      batch_shape(files.config, ranks,
                  {.dtype = DType::kBF16,
                   .max_rows = kRows,
                   .max_tokens = 192,
                   .cache = {.page = 64,
                             .num_pages = ranks > 1 ? 2 : 4,  // too few for all at once
                             .sequences = 6,
                             .attention = PagedCache::Attention::kPrompts},
                   .plan_for = Target::kCuda,
                   .ahead = true});
  BatchModel model(std::make_unique<GpuBatchRunner>(gpus, shape, files.checkpoint), kRows);
  const Told together = serve(model, asked, 6, false);
  EXPECT_EQ(together.chosen.here, 0);
  EXPECT_EQ(together.chosen.by_device, kTokens * std::ssize(asked));
  const Told by_host = serve(model, asked, 6, true);
  EXPECT_EQ(by_host.chosen.by_device, 0);
  std::vector<Asked> some = {asked.end() - 2, asked.end()};
  if (ranks == 1) some.push_back(asked[2]);
  const Told alone = serve(model, some, 1, false);
  if (ranks == 1) {
    EXPECT_GT(together.preemptions, 0);
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    expect_same(together.answers[i], by_host.answers[i], 2e-6);
  }
  const std::size_t count = asked.size();
  for (std::size_t i = 0; i < some.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i) + ", alone");
    expect_same(alone.answers[i], together.answers[i == 2 ? 2 : count - 2 + i], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuSamplingTest,
                         testing::ValuesIn(drawn_of("sampling", std::vector{1, 2}, 2)),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto
