// Predicted steps of models. If these fail, a planner buys the wrong machine.
#include "stretto/model/transformer/batch_prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/step/check.h"
#include "stretto/step/text.h"

namespace stretto {
namespace {

constexpr const char* kDense = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
  "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})";
constexpr const char* kExperts = R"({"architectures": ["MixtralForCausalLM"],
  "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 2,
  "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096,
  "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})";

class BatchPredictionTest : public testing::TestWithParam<const char*> {
 protected:
  ModelConfig config_ = parse_config(GetParam(), "config");
  predict::Machine machine_ = predict::find_machine("h200x4");
  BatchPrediction ask(const BatchQuestion& q) const { return predict_batch(config_, machine_, q); }
};

TEST_P(BatchPredictionTest, MoreWorkTakesMoreTimeAndMemory) {
  BatchPrediction one = ask({.batch = 1, .context = 512});
  BatchPrediction many = ask({.batch = 64, .context = 512});
  BatchPrediction longer = ask({.batch = 64, .context = 8000});
  BatchPrediction prompt = ask({.batch = 64, .context = 512, .prompt = 128});
  EXPECT_GT(one.time_ms, 0);
  EXPECT_GT(longer.time_ms, many.time_ms);
  EXPECT_GT(prompt.time_ms, many.time_ms);
  EXPECT_GT(many.tokens_per_second, 8 * one.tokens_per_second);
  EXPECT_GT(many.memory_bytes, one.memory_bytes);
  EXPECT_GT(longer.memory_bytes, many.memory_bytes);
  // 125 pages each of 64 tokens of a layer's 4 heads, and one of rows of nobody.
  std::size_t page = 64 * static_cast<std::size_t>(4 * config_.head_dim) * 2 * 2 * 2;
  EXPECT_EQ(longer.bytes.state, (64 * 125 + 1) * page);
}

// A byte a number and four a head, and reading it takes less time.
TEST_P(BatchPredictionTest, AnFp8CacheIsHalfAsLarge) {
  BatchQuestion q{.batch = 64, .context = 8000};
  BatchPrediction as_activations = ask(q);
  q.fp8_cache = true;
  BatchPrediction fp8 = ask(q);
  std::size_t page = 64 * 4 * 2 * 2 * static_cast<std::size_t>(config_.head_dim + 4);
  EXPECT_EQ(fp8.bytes.state, (64 * 125 + 1) * page);
  EXPECT_EQ(fp8.bytes.constants, as_activations.bytes.constants);
  EXPECT_LT(fp8.memory_bytes, as_activations.memory_bytes);
  step::check(fp8.plan);
}

// A GPU runs steps of a few numbers of rows.
TEST_P(BatchPredictionTest, StepsAreFilledUp) {
  BatchPrediction some = ask({.batch = 65}), filled = ask({.batch = 100});
  EXPECT_GT(some.time_ms, ask({.batch = 64}).time_ms);
  EXPECT_LT(some.time_ms, 1.2 * filled.time_ms);
  EXPECT_LT(some.tokens_per_second, filled.tokens_per_second);
}

TEST_P(BatchPredictionTest, TheHeadTakesManySequencesInParts) {
  auto heads = [&](std::int64_t batch) {
    const BatchPrediction p = ask({.batch = batch});
    return std::count_if(p.step.nodes.begin(), p.step.nodes.end(), [&](const auto& node) {
      return p.plan.program_of(p.plan.nodes[node.node]).name == "lm_head";
    });
  };
  EXPECT_EQ(heads(256), 1);
  EXPECT_EQ(heads(257), 2);
  EXPECT_EQ(heads(1000), 4);
}

TEST_P(BatchPredictionTest, RanksShareWeightsAndCache) {
  BatchPrediction one = ask({.batch = 16}), two = ask({.batch = 16, .ranks = 2});
  EXPECT_LT(two.bytes.constants, one.bytes.constants * 6 / 10);
  EXPECT_EQ(two.bytes.state, one.bytes.state / 2);
}

// How many nodes of the predicted step launch a program of that name.
std::size_t launches_of(const BatchPrediction& p, const std::string& program) {
  return static_cast<std::size_t>(
      std::count_if(p.step.nodes.begin(), p.step.nodes.end(), [&](const step::NodePrediction& n) {
        return p.plan.program_of(p.plan.nodes[n.node]).name == program;
      }));
}

// What is predicted is a plan like any other.
TEST_P(BatchPredictionTest, ThePlanIsText) {
  for (const BatchQuestion& q :
       {BatchQuestion{.batch = 3, .ranks = 2}, BatchQuestion{.batch = 3, .prompt = 20, .ranks = 2},
        BatchQuestion{.batch = 0, .prompt = 500, .ranks = 2, .ulysses = true}}) {
    BatchPrediction p = ask(q);
    std::string text = step::print(p.plan);
    step::Plan again = step::parse(text, "plan");
    step::check(again);
    EXPECT_EQ(step::print(again), text);
    EXPECT_EQ(launches_of(p, "paged_decode"), 2u);
    EXPECT_EQ(launches_of(p, "paged_attention"), q.prompt > 0 ? 2u : 0u);
    for (const char* spread : {"gemm_a2a", "a2a_gemm"}) {
      EXPECT_EQ(launches_of(p, spread), q.ulysses ? 2u : 0u) << spread;
    }
  }
}

// A rank sends less and keeps more.
TEST_P(BatchPredictionTest, SpreadPromptsTakeMoreMemoryForWeights) {
  BatchQuestion q{.batch = 0, .prompt = 1000, .ranks = 4};
  BatchPrediction together = ask(q);
  q.ulysses = true;
  BatchPrediction spread = ask(q);
  EXPECT_GT(spread.bytes.constants, together.bytes.constants);
  EXPECT_EQ(spread.bytes.state, together.bytes.state);
  EXPECT_GT(spread.time_ms, 0);
}

TEST_P(BatchPredictionTest, RefusesWhatMakesNoSense) {
  EXPECT_THROW(ask({.batch = 0}), UserError);
  EXPECT_THROW(ask({.context = 8193}), UserError);
  EXPECT_THROW(ask({.batch = 8000, .prompt = 1000}), UserError);
  EXPECT_THROW(ask({.ranks = 8}), UserError) << "the machine has four GPUs";
}

INSTANTIATE_TEST_SUITE_P(Models, BatchPredictionTest, testing::Values(kDense, kExperts),
                         [](const auto& info) { return info.index == 0 ? "dense" : "experts"; });

}  // namespace
}  // namespace stretto
