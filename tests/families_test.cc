// Every family on random checkpoints against plain loops in fp64 (reference_model.h): a failure
// means that a user's Llama 3, Mistral, Mixtral or Qwen writes nonsense although the bundled
// checkpoints work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "stretto/base/test_seed.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/runtime/world.h"
#include "tests/reference_model.h"

namespace stretto {
namespace {

// Unlike any logit, so that a row which nobody wrote cannot pass.
constexpr float kPoison = -12345.0f;

using Logits = std::vector<std::vector<float>>;

// A prompt in one step, a few single tokens, a short step, and one more long step that begins in
// the middle of the cache, each beside another sequence that begins and goes on in between; memory
// that no node needs is poisoned.
Logits run_batches(const ModelConfig& config, const Checkpoint& checkpoint,
                   const std::vector<int>& tokens, int tp, bool ulysses) {
  Logits all(tokens.size(),
             std::vector<float>(static_cast<std::size_t>(config.vocab_size), kPoison));
  World world({.size = tp});
  world.run([&](Rank& rank) {
    BatchModel model(rank, config, checkpoint,
                     {.max_rows = 64,
                      .cache = {.page = 16, .num_pages = 12, .sequences = 4},
                      .expert_groups = config.moe && tp > 2 ? tp : 1,
                      .ulysses = ulysses,
                      .poison = true});
    const std::vector<int> pages = {7, 2, 9, 0, 11}, others = {1, 3, 5, 6};
    std::span<const int> rest(tokens);
    std::int64_t first = 0, other = 0;
    for (std::size_t count : {37u, 1u, 1u, 5u, 23u}) {
      std::size_t beside = count == 37u ? 20u : count == 5u ? 1u : 7u;
      std::vector<BatchPiece> pieces = {{.tokens = std::span<const int>(tokens).subspan(3, beside),
                                         .first = other,
                                         .pages = others,
                                         .wanted = 1},
                                        {.tokens = rest.first(count),
                                         .first = first,
                                         .pages = pages,
                                         .wanted = static_cast<std::int64_t>(count)}};
      model.step(pieces, [&](std::size_t piece, std::int64_t row, std::span<const float> logits) {
        if (rank.index() != 0 || piece == 0) return;
        std::copy(logits.begin(), logits.end(), all[static_cast<std::size_t>(first + row)].begin());
      });
      rest = rest.subspan(count);
      first += static_cast<std::int64_t>(count);
      other += static_cast<std::int64_t>(beside);
    }
  });
  return all;
}

void expect_near(const Logits& got, const std::vector<std::vector<double>>& expected) {
  double worst = 0;
  std::size_t worst_position = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t v = 0; v < expected[i].size(); ++v) {
      double error = std::abs(static_cast<double>(got[i][v]) - expected[i][v]);
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
      if (error > worst) worst = error, worst_position = i;
    }
  }
  EXPECT_LT(worst, 2e-4) << "at position " << worst_position;
}

void compare_with_reference(const ReferenceModel& reference, const std::vector<int>& tokens,
                            const std::vector<std::vector<double>>& expected) {
  TemporaryDirectory directory;
  reference.write(directory);
  ModelConfig parsed = read_config(directory.path());
  Checkpoint checkpoint(directory.path());
  parsed.check_against(checkpoint);
  for (auto [tp, ulysses] :
       {std::pair{1, false}, {2, false}, {3, false}, {5, false}, {2, true}, {5, true}}) {
    SCOPED_TRACE("tp " + std::to_string(tp) + (ulysses ? " ulysses" : ""));
    expect_near(run_batches(parsed, checkpoint, tokens, tp, ulysses), expected);
  }
}

void compare_with_reference(const ReferenceConfig& config) {
  constexpr double kClear = 1e-4;  // in fp32 and fp64 the same experts are chosen
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(config.model_type + ", STRETTO_TEST_SEED=" + std::to_string(seed));
  for (int draw = 0; draw < 20; ++draw, ++seed) {
    ReferenceModel reference(config, seed);
    std::mt19937_64 random(seed);
    std::vector<int> tokens(67);
    for (int& t : tokens) t = std::uniform_int_distribution<int>(0, config.vocab - 1)(random);
    auto expected = reference.logits(tokens);
    if (reference.closest_choice() > kClear) {
      return compare_with_reference(reference, tokens, expected);
    }
  }
  FAIL() << "every draw has a token between two experts";
}

TEST(FamiliesTest, LlamaWithLlama3RopeAndUntiedHead) {
  // The wavelengths 6, 17, 44 and 118 lie on both sides of 32 / 4 and 32 / 1: kept, blended and
  // stretched ones.
  compare_with_reference({.llama3 = Llama3Rope{}});
}

TEST(FamiliesTest, LlamaWithBiasesAfterEveryProjection) {
  compare_with_reference({.qkv_bias = true, .out_bias = true, .mlp_bias = true});
  compare_with_reference({.mlp_bias = true});
}

TEST(FamiliesTest, YarnStretchesLowFrequencies) {
  // The four pairs turn 5.1, 1.9, 0.7 and 0.3 times: one is kept, two are blended, one stretched.
  compare_with_reference({.yarn = YarnRope{}});
  compare_with_reference({.yarn = YarnRope{.truncate = false}});
}

TEST(FamiliesTest, DynamicRopeIsTheDefaultWithinTheContext) {
  compare_with_reference({.dynamic = true});
}

TEST(FamiliesTest, MistralSlidesItsWindowInEveryLayer) {
  compare_with_reference({.model_type = "mistral",
                          .architecture = "MistralForCausalLM",
                          .heads = 4,
                          .kv_heads = 4,
                          .head_dim = 10,
                          .window = 7});
}

TEST(FamiliesTest, Qwen2AddsBiasesAndTiesTheHead) {
  compare_with_reference({.model_type = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .heads = 5,
                          .kv_heads = 1,
                          .rope_theta = 1000,
                          .qkv_bias = true,
                          .tied = true});
}

TEST(FamiliesTest, Qwen2SlidesTheWindowInTheUpperLayersWhenAsked) {
  compare_with_reference({.model_type = "qwen2",
                          .architecture = "Qwen2ForCausalLM",
                          .layers = 3,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 12,
                          .qkv_bias = true,
                          .window = 20,
                          .first_sliding_layer = 2});
}

TEST(FamiliesTest, Qwen3NormsItsHeads) {
  compare_with_reference({.model_type = "qwen3",
                          .architecture = "Qwen3ForCausalLM",
                          .vocab = 50,
                          .hidden = 33,
                          .ffn = 47,
                          .heads = 9,
                          .kv_heads = 3,
                          .head_dim = 14,
                          .eps = 1e-6,
                          .qk_norm = true});
}

TEST(FamiliesTest, MixtralRoutesEveryLayer) {
  compare_with_reference({.model_type = "mixtral",
                          .architecture = "MixtralForCausalLM",
                          .ffn = 24,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 10,
                          .experts = 5});
}

TEST(FamiliesTest, Qwen3MoeMixesDenseLayersIn) {
  ReferenceConfig config{.model_type = "qwen3_moe",
                         .architecture = "Qwen3MoeForCausalLM",
                         .layers = 4,
                         .heads = 4,
                         .kv_heads = 2,
                         .qk_norm = true,
                         .experts = 9,
                         .top_k = 3,
                         .expert_ffn = 7,
                         .moe_step = 2};
  for (bool normalize : {true, false}) {
    config.normalize = normalize;
    compare_with_reference(config);
    config.moe_step = 1;
    config.dense_layers = {0, 2};
  }
}

TEST(FamiliesTest, ExpertsAreChosenAsTheConfigAsks) {
  compare_with_reference({.model_type = "qwen3_moe",
                          .architecture = "Qwen3MoeForCausalLM",
                          .heads = 4,
                          .kv_heads = 2,
                          .qk_norm = true,
                          .experts = 12,
                          .top_k = 3,
                          .expert_ffn = 7,
                          .sigmoid = true,
                          .choice_bias = true,
                          .n_group = 4,
                          .topk_group = 2,
                          .scaling = 2.5});
}

}  // namespace
}  // namespace stretto
