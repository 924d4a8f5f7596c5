// Many requests over one cache of pages on GPUs (simulated ones will do, docs/internals): answers
// are those of CPU ranks, and those of each request alone. If this fails, what a client of a server
// with GPUs reads depends on who else asks.
#include "stretto/model/gpu/gpu_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/engine/generate.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/runtime/cuda/driver.h"
#include "tests/batch_requests.h"
#include "tests/batch_rounds.h"
#include "tests/reference_model.h"

namespace stretto {
namespace {

struct GpuCompany {
  const char* model;
  int ranks = 1;
  DType dtype = DType::kF32;
  bool fp8_cache = false;
  const char* weights = "auto";
  // Of a step. With 64 those of 33 to 48 are filled up to 48, others to 64.
  int max_rows = 24;
  int prompts = 0;  // of a step, 0: any number
};

void PrintTo(const GpuCompany& c, std::ostream* out) {
  *out << c.model << " tp " << c.ranks << " " << name(c.dtype) << (c.fp8_cache ? " fp8 cache" : "")
       << " weights " << c.weights << " rows " << c.max_rows << " prompts " << c.prompts;
}

bool has_gpus(int count) { return cuda::num_devices() >= count; }

BatchOptions options_for(const GpuCompany& c, std::int64_t pages) {
  return {.dtype = c.dtype,
          .max_rows = c.max_rows,
          .max_tokens = 192,
          .cache = {.page = kPage,
                    .num_pages = pages,
                    .sequences = 6,
                    .prompts = c.prompts,
                    .fp8 = c.fp8_cache,
                    .first_run = kPage},  // so that there are several
          .plan_for = Target::kCuda};
}

class GpuBatchTest : public testing::TestWithParam<GpuCompany> {};

// Few requests, some with prompts of several pieces, more than the pages hold at a time.
std::vector<Wish> few_wishes(std::uint64_t seed, int vocab) {
  Requests requests(seed);
  std::vector<Wish> wishes;
  for (int size : {62, 61, 60, 5, 70}) {
    Wish w{.prompt = {}, .max_tokens = 6};
    while (std::ssize(w.prompt) < size) w.prompt.push_back(2 + requests.below(vocab - 2));
    w.every_row = size == 5;
    wishes.push_back(w);
  }
  return wishes;
}

TEST_P(GpuBatchTest, AnswersAreThoseOfCpuRanksAndOfRequestsAlone) {
  const GpuCompany c = GetParam();
  if (!has_gpus(c.ranks)) GTEST_SKIP() << "needs " << c.ranks << " GPUs";
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files(std::string("checkpoints/") + c.model);
  set_weights(files.config, c.weights);
  std::vector<Wish> wishes = few_wishes(seed, static_cast<int>(files.config.vocab_size));
  // Few, so that requests are cut short and begin again.
  const int num_blocks = c.ranks > 1 ? 2 : 4;
  if (c.ranks > 1) wishes.resize(2);  // simulated GPUs take turns
  BatchOptions options = options_for(c, num_blocks);
  SchedulerLimits limits{
      .max_running = 6, .max_rows = c.max_rows, .max_prompts = c.prompts, .num_blocks = num_blocks};

  const double margin = c.dtype == DType::kF32 ? 1e-3 : 0.1;
  // Where numbers become e4m3, those that differ in the last bit may be a sixteenth apart: of such
  // answers the first token is compared, and no more.
  const bool rounds_coarsely = c.fp8_cache || std::string(c.weights) == "fp8";

  Served on_cpu, on_gpus;
  World world({.size = c.ranks});
  world.run([&](Rank& rank) {
    BatchModel model(rank, files.config, files.checkpoint, options);
    Served own;
    serve(model, limits, wishes, own);
    if (rank.index() == 0) on_cpu = own;
  });
  GpuWorld gpus({.size = c.ranks});
  ModelShape shape = batch_shape(files.config, c.ranks, options);
  BatchModel model(std::make_unique<GpuBatchRunner>(gpus, shape, files.checkpoint), c.max_rows);
  serve(model, limits, wishes, on_gpus);
  EXPECT_GT(on_gpus.counters.preemptions, 0);
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    if (rounds_coarsely) {
      EXPECT_NEAR(on_gpus.answers[i].best.at(0), on_cpu.answers[i].best.at(0), 1)
          << "request " << i;
      continue;
    }
    EXPECT_EQ(on_gpus.answers[i].tokens, on_cpu.answers[i].tokens) << "request " << i;
    ASSERT_EQ(on_gpus.answers[i].best.size(), on_cpu.answers[i].best.size());
    for (std::size_t k = 0; k < on_cpu.answers[i].best.size(); ++k) {
      EXPECT_NEAR(on_gpus.answers[i].best[k], on_cpu.answers[i].best[k], margin) << "request " << i;
    }
  }
  SchedulerLimits alone{
      .max_running = 1, .max_rows = 17, .num_blocks = num_blocks, .prefix_caching = false};
  for (std::size_t i : {0, 1}) {
    Served one;
    Wish wish = wishes[i];
    wish.after_step = 0;
    serve(model, alone, {wish}, one);
    EXPECT_TRUE(one.answers[0] == on_gpus.answers[i]) << "request " << i;
  }
}

struct GpuFamily {
  ReferenceConfig model;
  int ranks = 2;
  bool spreads = true;   // the rows of the prompt
  bool poisons = false;  // memory that no node needs any more
  bool fuses = false;    // the sums of experts, in all steps
};

// Logits of a prompt in a step of 128 rows, and of a token after it, by the position.
std::vector<std::vector<float>> gpu_logits(const ReferenceModel& reference,
                                           const std::vector<int>& tokens, const GpuFamily& of) {
  TemporaryDirectory directory;
  reference.write(directory);
  ModelConfig config = read_config(directory.path());
  Checkpoint checkpoint(directory.path());
  BatchOptions options{.max_rows = 128,
                       .max_tokens = 192,
                       .cache = {.page = kPage, .num_pages = 3, .sequences = 1, .first_run = kPage},
                       .plan_for = Target::kCuda,
                       .expert_groups = config.moe && of.spreads ? of.ranks : 1,
                       .ulysses = of.spreads};
  GpuWorld gpus({.size = of.ranks});
  BatchModel model(std::make_unique<GpuBatchRunner>(
                       gpus, batch_shape(config, of.ranks, options), checkpoint,
                       GpuModelOptions{.graphs = !of.poisons,
                                       .fused_expert_rows = of.fuses ? 1 : kNoFusedExperts,
                                       .poison = of.poisons}),
                   options.max_rows);
  std::vector<std::vector<float>> rows;
  const std::vector<int> pages = {2, 0, 1};
  const std::span<const int> all(tokens);
  for (std::span<const int> part : {all.first(all.size() - 1), all.last(1)}) {
    const BatchPiece piece{
        .tokens = part, .first = std::ssize(rows), .pages = pages, .wanted = std::ssize(part)};
    model.step({&piece, 1}, [&](std::size_t, std::int64_t, std::span<const float> logits) {
      rows.emplace_back(logits.begin(), logits.end());
    });
  }
  return rows;
}

class GpuFamilyTest : public testing::TestWithParam<GpuFamily> {};

TEST_P(GpuFamilyTest, LogitsAreThoseOfTheReference) {
  constexpr int kDraws = 40;
  const ReferenceConfig& config = GetParam().model;
  constexpr double kClear = 1e-4;  // in fp32 and fp64 the same experts are chosen
  if (!has_gpus(GetParam().ranks)) GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs";
  std::uint64_t seed = test_seed();
  for (int draw = 0; draw < kDraws; ++draw, ++seed) {
    ReferenceModel reference(config, seed);
    Requests requests(seed);
    std::vector<int> tokens(120);  // a step that is not full
    for (int& t : tokens) t = requests.below(config.vocab);
    const std::vector<std::vector<double>> expected = reference.logits(tokens);
    if (config.experts > 0 && reference.closest_choice() < kClear) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<std::vector<float>> got = gpu_logits(reference, tokens, GetParam());
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      for (std::size_t v = 0; v < got[i].size(); ++v) {
        ASSERT_NEAR(got[i][v], expected[i][v], 5e-4) << "position " << i << ", token " << v;
      }
    }
    return;
  }
  FAIL() << "every draw has a token between two experts";
}

const ReferenceConfig kDense{
    .hidden = 64, .ffn = 64, .layers = 1, .heads = 4, .head_dim = 16, .max_positions = 256};
const ReferenceConfig kExperts{.model_type = "qwen3_moe",
                               .architecture = "Qwen3MoeForCausalLM",
                               .hidden = 64,
                               .layers = 1,
                               .heads = 4,
                               .head_dim = 16,
                               .max_positions = 256,
                               .qk_norm = true,
                               .experts = 4,
                               .expert_ffn = 64};

struct GpuExperts {
  std::int64_t swapped_rows = kFewExpertRows;  // ModelShape
  std::int64_t fused_rows = kNoFusedExperts;   // likewise
  int ranks = 1, groups = 1;
};
constexpr std::int64_t kFromManyRows = 32;  // which the company's first steps have, those alone not
class GpuExpertsTest : public testing::TestWithParam<GpuExperts> {};

// Steps of few rows and of many have tiles of other sizes, and with 16 rows other left factors.
TEST_P(GpuExpertsTest, AnswersAreThoseOfRequestsAlone) {
  const GpuExperts& of = GetParam();
  if (!has_gpus(of.ranks)) GTEST_SKIP() << "needs " << of.ranks << " GPUs";
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  TemporaryDirectory directory;
  ReferenceModel(kExperts, seed).write(directory);
  const ModelConfig config = read_config(directory.path());
  const Checkpoint checkpoint(directory.path());
  BatchOptions options{.dtype = DType::kBF16,
                       .max_rows = 80,
                       .max_tokens = 192,
                       .cache = {.page = kPage, .num_pages = 6, .sequences = 4, .first_run = kPage},
                       .plan_for = Target::kCuda,
                       .expert_groups = of.groups};
  ModelShape shape = batch_shape(config, of.ranks, options);
  shape.swapped_expert_rows = of.swapped_rows;
  shape.fused_expert_rows = of.fused_rows;
  GpuWorld gpus({.size = of.ranks});
  BatchModel model(std::make_unique<GpuBatchRunner>(gpus, shape, checkpoint), options.max_rows);
  Requests requests(seed);
  std::vector<Wish> wishes;
  for (int size : {70, 63, 7}) {  // of one run and of two
    Wish w{.prompt = {}, .max_tokens = 4};
    while (std::ssize(w.prompt) < size) w.prompt.push_back(requests.below(kExperts.vocab));
    wishes.push_back(w);
  }
  Served company;
  serve(model, {.max_running = 4, .max_rows = 80, .num_blocks = 6}, wishes, company);
  EXPECT_EQ(company.most_running, 3u);
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    Served one;
    serve(model, {.max_running = 1, .max_rows = 9, .num_blocks = 6, .prefix_caching = false},
          {wishes[i]}, one);
    EXPECT_TRUE(one.answers[0] == company.answers[i]) << "request " << i;
  }
  if (of.fused_rows == kNoFusedExperts) return;
  shape.fused_expert_rows = kNoFusedExperts;
  BatchModel several(std::make_unique<GpuBatchRunner>(gpus, shape, checkpoint), options.max_rows);
  Served of_several;
  serve(several, {.max_running = 4, .max_rows = 80, .num_blocks = 6}, wishes, of_several);
  EXPECT_TRUE(of_several.answers == company.answers) << "one launch has other bits than several";
}

std::vector<GpuExperts> experts() {
  const std::vector<GpuExperts> all = {
      {1'000'000}, {16}, {16, 1, 1}, {16, 1, 2}, {16, kFromManyRows, 2}, {0, 1, 2, 2}};
  return drawn_of("experts", all, 6);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuExpertsTest, testing::ValuesIn(experts()),
                         [](const auto& info) {
                           const GpuExperts& of = info.param;
                           const bool fuses = of.fused_rows != kNoFusedExperts;
                           return std::to_string(of.ranks) + (of.groups > 1 ? "_ep" : "") +
                                  (!fuses ? "_swapped_" + std::to_string(of.swapped_rows)
                                   : of.fused_rows > 1 ? "_fused_many"
                                                       : "_fused");
                         });

// Kernels load whole tiles: what lies in rows of nobody must not reach those of somebody.
std::vector<GpuFamily> families() {
  const std::vector<GpuFamily> all = {{kDense},
                                      {kExperts},
                                      {kDense, 1, false, true},
                                      {kDense, 2, true, true},
                                      {kExperts, 1, false, true},
                                      {kExperts, 2, true, true},
                                      {kExperts, 1, false, true, true},
                                      {kExperts, 2, false, true, true}};
  return drawn_of("families", all, 4);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuFamilyTest, testing::ValuesIn(families()),
                         [](const auto& info) {
                           const GpuFamily& of = info.param;
                           return std::string(of.model.experts > 0 ? "experts" : "dense") +
                                  std::to_string(of.ranks) + (of.poisons ? "_poisoned" : "") +
                                  (of.fuses ? "_fused" : "");
                         });

std::vector<GpuCompany> companies() {
  constexpr const char* kModel = "debian-llama-draft-1m";
  std::vector<GpuCompany> all = {{kModel, 1, DType::kF32},
                                 {kModel, 1, DType::kBF16, false, "auto", 64, 1},
                                 {kModel, 1, DType::kBF16, true},
                                 {kModel, 2, DType::kBF16, false, "auto", 24, 2},
                                 {kModel, 1, DType::kBF16, false, "fp8"},
                                 {kModel, 2, DType::kBF16, false, "fp8"}};
  return drawn_of("companies", all, 6);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuBatchTest, testing::ValuesIn(companies()),
                         [](const auto& info) {
                           std::string text = testing::PrintToString(info.param);
                           for (char& c : text) c = std::isalnum(c) != 0 ? c : '_';
                           return text;
                         });

class GpuScheduleTest : public testing::TestWithParam<Lot> {};

TEST_P(GpuScheduleTest, SchedulesByLotChangeNoBit) {
  const Lot& lot = GetParam();
  if (!has_gpus(lot.ranks)) GTEST_SKIP() << "needs " << lot.ranks << " GPUs";
  if (std::getenv("STRETTO_SOAK") == nullptr) GTEST_SKIP() << "deferred to --long";
  const bool is_simulated = std::getenv("STRETTO_SIMULATED_SMS") != nullptr;
  const int requests = is_simulated ? 12 : lot.requests;
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files(std::string("checkpoints/") + lot.model);
  BatchOptions options = Rounds::options(lot.dtype);
  options.plan_for = Target::kCuda;
  options.cache.first_run = kPage;  // so that there are several
  GpuWorld gpus({.size = lot.ranks});
  BatchModel model(std::make_unique<GpuBatchRunner>(
                       gpus, batch_shape(files.config, lot.ranks, options), files.checkpoint),
                   options.max_rows);
  Rounds rounds(static_cast<int>(files.config.vocab_size), seed);
  rounds.run_all(model, requests, [&] { rounds.print(lot); });
  EXPECT_EQ(rounds.different, 0) << "of " << rounds.compared;
  rounds.expect_it_counts(requests);
}

INSTANTIATE_TEST_SUITE_P(Models, GpuScheduleTest,
                         testing::Values(Lot{"debian-llama-draft-1m", 1, 2'500, DType::kBF16},
                                         Lot{"debian-llama-8m", 1, 2'500, DType::kBF16},
                                         Lot{"debian-qwen3moe-18m", 1, 2'500, DType::kBF16},
                                         Lot{"debian-llama-8m", 2, 1'500, DType::kBF16},
                                         Lot{"debian-qwen3moe-18m", 2, 1'000, DType::kBF16}),
                         [](const auto& info) {
                           std::string text = info.param.model;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + "_" + std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace stretto
