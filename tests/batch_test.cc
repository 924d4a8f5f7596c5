// Requests in random company against the same requests alone, bit by bit: a failure means that what
// a client reads depends on who else asks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/engine/generate.h"
#include "stretto/model/transformer/batch_model.h"
#include "tests/batch_requests.h"
#include "tests/batch_rounds.h"
#include "tests/reference_model.h"

namespace stretto {
namespace {

struct Company {
  const char* model;
  int ranks = 1;
  bool fp8_cache = false;
  const char* weights = "auto";
  DType dtype = DType::kF32;
};

class BatchTest : public testing::TestWithParam<Company> {};
// Without the coarser caches of fp8, which may choose other tokens.
class BatchTokensTest : public BatchTest {};

TEST_P(BatchTest, AnswersAreThoseOfRequestsAlone) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files(std::string("checkpoints/") + GetParam().model);
  set_weights(files.config, GetParam().weights);
  Requests requests(seed);
  std::vector<Wish> wishes;
  for (int i = 0; i < 40; ++i) {
    wishes.push_back(requests.wish(static_cast<int>(files.config.vocab_size)));
  }
  constexpr int kBlocks = 9;  // few, so that requests are cut short and begin again
  World world({.size = GetParam().ranks});
  std::vector<Served> together(static_cast<std::size_t>(world.size()));
  std::vector<Reply> alone;
  world.run([&](Rank& rank) {
    BatchModel model(
        rank, files.config, files.checkpoint,
        {.dtype = GetParam().dtype,
         .max_rows = 64,
         .max_tokens = 512,
         .cache = {
             .page = kPage, .num_pages = kBlocks, .sequences = 16, .fp8 = GetParam().fp8_cache}});
    Served& run = together[static_cast<std::size_t>(rank.index())];
    serve(model, {.max_running = 16, .max_rows = 64, .num_blocks = kBlocks}, wishes, run);
    for (Wish wish : wishes) {
      Served one;
      wish.after_step = 0;
      serve(model, {.max_running = 1, .max_rows = 37, .num_blocks = 8, .prefix_caching = false},
            {wish}, one);
      if (rank.index() == 0) alone.push_back(one.answers[0]);
    }
  });
  for (const Served& run : together) {
    ASSERT_EQ(run.answers.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(run.answers[i].tokens, alone[i].tokens) << "request " << i;
      EXPECT_TRUE(run.answers[i] == alone[i]) << "request " << i;
    }
  }
  EXPECT_GT(together[0].counters.preemptions, 0);
  EXPECT_GT(together[0].counters.prefix_hits, 0);
  EXPECT_GT(together[0].most_running, 4U);
}

class ScheduleTest : public testing::TestWithParam<Lot> {};

TEST_P(ScheduleTest, SchedulesByLotChangeNoBit) {
  const int requests = std::getenv("STRETTO_SOAK") != nullptr ? GetParam().requests : Rounds::kFew;
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const ModelFiles files(std::string("checkpoints/") + GetParam().model);
  World world({.size = GetParam().ranks});
  std::vector<std::optional<Rounds>> of(static_cast<std::size_t>(world.size()));
  world.run([&](Rank& rank) {
    BatchModel model(rank, files.config, files.checkpoint, Rounds::options(GetParam().dtype));
    Rounds& rounds = of[static_cast<std::size_t>(rank.index())].emplace(
        static_cast<int>(files.config.vocab_size), seed);
    rounds.run_all(model, requests, [&] {
      if (rank.index() == 0) rounds.print(GetParam());
    });
  });
  for (const auto& rounds : of) EXPECT_EQ(rounds->different, 0) << "of " << rounds->compared;
  of[0]->expect_it_counts(requests);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ScheduleTest,
    testing::ValuesIn(drawn_of(
        "schedules",
        std::vector{Lot{"debian-llama-draft-1m", 1, 3'000}, Lot{"debian-llama-draft-1m", 2, 2'500},
                    Lot{"debian-llama-draft-1m", 3, 2'250}, Lot{"debian-llama-draft-1m", 4, 2'250},
                    Lot{"debian-llama-8m", 1, 500}, Lot{"debian-qwen3moe-18m", 2, 500},
                    Lot{"debian-llama-draft-1m", 2, 500, DType::kBF16}},
        2)),
    [](const auto& info) {
      std::string name = info.param.model;
      std::replace(name.begin(), name.end(), '-', '_');
      return name + "_" + std::to_string(info.param.ranks) +
             (info.param.dtype == DType::kF32 ? "" : "_bf16");
    });

// The tokens are the model's: those of the step for one sequence, and of the reference library.
TEST_P(BatchTokensTest, TokensAreTheModels) {
  ModelFiles files(std::string("checkpoints/") + GetParam().model);
  set_rope_frequencies(files.config, "checkpoint-dtype");
  Json golden = read_json_file(std::string("checkpoints/") + GetParam().model + "/golden.json");
  std::vector<Wish> wishes;
  for (const Json& prompt : golden.at("prompts")) {
    wishes.push_back({.prompt = prompt.at("ids").get<std::vector<int>>(),
                      .max_tokens = std::ssize(prompt.at("greedy_ids"))});
  }
  World world({.size = GetParam().ranks});
  Served run;
  world.run([&](Rank& rank) {
    BatchModel model(rank, files.config, files.checkpoint,
                     {.max_rows = 64,
                      .max_tokens = 512,
                      .cache = {.page = kPage, .num_pages = 64, .sequences = 16}});
    Served own;
    serve(model, {.max_running = 16, .max_rows = 64, .num_blocks = 64}, wishes, own);
    if (rank.index() == 0) run = own;
  });
  std::size_t equal = 0;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    auto want = golden.at("prompts")[i].at("greedy_ids").get<std::vector<int>>();
    equal += run.answers[i].tokens == want ? 1 : 0;
  }
  EXPECT_EQ(equal, wishes.size());
}

std::string name_of(const testing::TestParamInfo<Company>& info) {
  std::string name = info.param.model;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_" + std::to_string(info.param.ranks) + (info.param.fp8_cache ? "_fp8" : "") +
         "_" + info.param.weights;
}

const auto kCompanies =
    testing::Values(Company{"debian-llama-8m", 1}, Company{"debian-llama-8m", 2},
                    Company{"debian-llama-draft-1m", 3}, Company{"debian-qwen3moe-18m", 2});

INSTANTIATE_TEST_SUITE_P(Models, BatchTest, kCompanies, name_of);
INSTANTIATE_TEST_SUITE_P(Models, BatchTokensTest, kCompanies, name_of);
INSTANTIATE_TEST_SUITE_P(InBfloat16, BatchTest,
                         testing::Values(Company{"debian-llama-8m", 2, false, "auto",
                                                 DType::kBF16}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CachesOfFp8, BatchTest,
                         testing::Values(Company{"debian-llama-8m", 2, true}), name_of);
INSTANTIATE_TEST_SUITE_P(
    WeightsOfFp8, BatchTest,
    testing::ValuesIn(drawn_of("weights of fp8",
                               std::vector{Company{"debian-llama-8m", 2, false, "fp8"},
                                           Company{"debian-llama-draft-1m", 1, true, "fp8"},
                                           Company{"debian-qwen3moe-18m", 2, false, "fp8"}},
                               3)),
    name_of);

}  // namespace
}  // namespace stretto
