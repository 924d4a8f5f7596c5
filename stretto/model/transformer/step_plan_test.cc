// A plan that is not the one asked for gives the same tokens all the same, only by another way.
#include "stretto/model/transformer/step_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/testing/gpu_harness/late_inputs.h"

namespace stretto {
namespace {

constexpr const char* kPlanConfig =
    R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
  "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
  "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1})";

// How often each program is launched.
std::map<std::string, int> launches_of(const ModelStep& step) {
  std::map<std::string, int> count;
  for (const step::Node& node : step.plan.nodes) ++count[step.plan.program_of(node).name];
  return count;
}

struct Shape {
  std::int64_t rows = 0, cols = 0;
};
std::map<std::string, Shape> buffers_of(const ModelShape& shape) {
  std::map<std::string, Shape> buffers;
  for (const step::Buffer& b : model_buffers(shape)) {
    const std::vector<std::int64_t> dims = step::eval(b.shape, {});
    buffers[b.name] = {dims.at(0), dims.at(1)};
  }
  return buffers;
}

class StepPlanTest : public testing::TestWithParam<Target> {
 protected:
  ModelConfig config_ = parse_config(kPlanConfig, "config");
  ModelShape shape(int ranks, bool ulysses) const {
    return batch_shape(config_, ranks,
                       {.cache = {.page = 64, .num_pages = 8, .sequences = 4},
                        .plan_for = GetParam(),
                        .ulysses = ulysses});
  }
};

constexpr std::int64_t kPromptRows = 256;

TEST_P(StepPlanTest, HeadsChangeRanksAroundTheAttentionOfPrompts) {
  auto prompt = launches_of(plan_step(shape(4, true), kPromptRows));
  EXPECT_EQ(prompt["gemm_a2a"], 3);
  EXPECT_EQ(prompt["a2a_gemm"], 3);
  EXPECT_EQ(prompt["ag_gemm"], 3) << "of the MLP alone";
  auto heads = launches_of(plan_step(shape(4, false), kPromptRows));
  EXPECT_EQ(heads["gemm_a2a"] + heads["a2a_gemm"], 0);
  EXPECT_EQ(heads["ag_gemm"], 0) << "rows are on all ranks, where nobody asked for more";
  EXPECT_EQ(heads["gemm_ar"], 6);
}

// What a prompt of many tokens is spread for.
TEST_P(StepPlanTest, ARankHasItsShareOfTheRows) {
  auto rows_of = [&](const ModelStep& step, const char* name) {
    const step::Plan& plan = step.plan;
    const step::Buffer& b = plan.buffers.at(static_cast<std::size_t>(plan.find_buffer(name)));
    return step::eval(b.shape, plan.bounds()).at(0);
  };
  EXPECT_EQ(rows_of(plan_step(shape(4, true), kPromptRows), "x"), kPromptRows / 4);
  EXPECT_EQ(rows_of(plan_step(shape(4, false), kPromptRows), "x"), kPromptRows);
}

// Reading all of attention's weights for one token would cost more than its traffic.
TEST_P(StepPlanTest, DecodeAndOneRankAreAsEver) {
  for (int ranks : {1, 4}) {
    EXPECT_EQ(launches_of(plan_step(shape(ranks, true), 1)),
              launches_of(plan_step(shape(ranks, false), 1)));
  }
  EXPECT_EQ(launches_of(plan_step(shape(1, true), kPromptRows)),
            launches_of(plan_step(shape(1, false), kPromptRows)));
  EXPECT_FALSE(buffers_of(shape(1, true)).contains("layers.0.whole_qkv"));
}

// 6 heads over 4 ranks: two a rank, the last one's are padding; the second one's need both heads of
// keys.
TEST_P(StepPlanTest, EveryRankHasAllOfAttentionsWeightsBesideItsShare) {
  auto with = buffers_of(shape(4, true)), without = buffers_of(shape(4, false));
  std::int64_t dim = config_.head_dim, own = (2 + 2 * 2) * dim;
  EXPECT_EQ(with.at("layers.1.qkv").rows, own);
  EXPECT_EQ(with.at("layers.1.whole_qkv").rows, 4 * own);
  EXPECT_EQ(with.at("layers.1.whole_qkv_bias").cols, 4 * own);
  EXPECT_EQ(with.at("layers.1.whole_out").cols, 4 * 2 * dim);
  EXPECT_EQ(with.size(), without.size() + 3 * 3);
}

// What gpu_bench catalog --early takes for constant is what a step's launches take for it.
TEST_P(StepPlanTest, ConstantsAreTheWeightsOfEveryProgram) {
  for (int ranks : {1, 2}) {
    for (std::int64_t bound : {1, 16, 256}) {
      const ModelShape s = shape(ranks, true);
      const step::Plan plan = plan_step(s, bound).plan;
      std::vector<std::set<std::string>> constants = step::constant_inputs(plan);
      for (std::size_t i = 0; i < plan.programs.size(); ++i) {
        EXPECT_EQ(constants[i], weight_inputs(plan.programs[i])) << plan.programs[i].name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, StepPlanTest, testing::Values(Target::kCpu, Target::kCuda));

}  // namespace
}  // namespace stretto
