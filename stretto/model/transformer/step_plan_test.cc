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

constexpr const char* kExpertsConfig =
    R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
  "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
  "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 8192, "num_experts": 6,
  "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1,
  "norm_topk_prob": true, "mlp_only_layers": [1],
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})";

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
      for (const char* config : {kPlanConfig, kExpertsConfig}) {
        config_ = parse_config(config, "config");
        ModelShape s = shape(ranks, true);
        s.fused_expert_rows = 1;
        const step::Plan plan = plan_step(s, bound).plan;
        std::vector<std::set<std::string>> constants = step::constant_inputs(plan);
        for (std::size_t i = 0; i < plan.programs.size(); ++i) {
          EXPECT_EQ(constants[i], weight_inputs(plan.programs[i])) << plan.programs[i].name;
        }
      }
    }
  }
}

// Two of three layers have experts.
TEST_P(StepPlanTest, FusedExpertsStandForProductSumAndAllReduce) {
  config_ = parse_config(kExpertsConfig, "config");
  auto launches = [&](bool fused, bool ulysses, int groups, std::int64_t rows) {
    ModelShape s = shape(4, ulysses);
    s.expert_groups = groups;
    s.fused_expert_rows = fused ? 1 : kNoFusedExperts;
    return launches_of(plan_step(s, rows));
  };
  for (std::int64_t rows : {1, 256}) {
    auto off = launches(false, false, 1, rows), on = launches(true, false, 1, rows);
    EXPECT_EQ(off["moe_combine"], 2);
    EXPECT_EQ(on["sorted_gemm_ar"], 2);
    EXPECT_EQ(on["moe_combine"] + on["grouped_gemm"] + off["sorted_gemm_ar"], 0);
    EXPECT_EQ(on["grouped_swiglu"], off["grouped_swiglu"]);
  }
  auto spread = launches(true, true, 1, kPromptRows);
  EXPECT_EQ(spread["sorted_gemm_rs"], 2);
  EXPECT_EQ(spread["moe_combine"] + spread["sorted_gemm_ar"], 0);
  EXPECT_EQ(launches(true, false, 2, kPromptRows)["sorted_gemm_ar"], 2);
  EXPECT_EQ(launches(true, true, 4, kPromptRows), launches(false, true, 4, kPromptRows))
      << "tokens that go to the ranks of their experts have no fused way";
}

TEST_P(StepPlanTest, ExpertsAreFusedFromSoManyRowsOn) {
  config_ = parse_config(kExpertsConfig, "config");
  ModelShape s = shape(2, false);
  s.fused_expert_rows = 256;
  for (std::int64_t rows : {255, 256, 257}) {
    EXPECT_EQ(launches_of(plan_step(s, rows))["sorted_gemm_ar"], rows < 256 ? 0 : 2) << rows;
  }
}

// Where it was measured to be faster, and nowhere else.
TEST_P(StepPlanTest, ExpertsAreFusedByThemselvesOnTwoGpus) {
  config_ = parse_config(kExpertsConfig, "config");
  auto from = [&](int ranks, BatchOptions options) {
    options.plan_for = GetParam();
    options.cache = {.page = 16, .num_pages = 16, .sequences = 4};
    return batch_shape(config_, ranks, options).fused_expert_rows;
  };
  const BatchOptions bf16{.dtype = DType::kBF16};
  EXPECT_EQ(from(2, bf16), GetParam() == Target::kCuda ? kFusedExpertRows : kNoFusedExperts);
  EXPECT_EQ(from(2, {.dtype = DType::kBF16, .fused_experts = FusedExperts::kOff}), kNoFusedExperts);
  EXPECT_EQ(from(2, {.dtype = DType::kBF16, .fused_experts = FusedExperts::kOn}), 1);
  EXPECT_EQ(from(1, bf16), kNoFusedExperts);
  EXPECT_EQ(from(4, bf16), kNoFusedExperts);
  EXPECT_EQ(from(2, {.dtype = DType::kF32}), kNoFusedExperts);
  EXPECT_EQ(from(2, {.dtype = DType::kBF16, .expert_groups = 2}), kNoFusedExperts);
  EXPECT_EQ(from(2, {.dtype = DType::kBF16, .ulysses = true}), kNoFusedExperts);
}

INSTANTIATE_TEST_SUITE_P(Targets, StepPlanTest, testing::Values(Target::kCpu, Target::kCuda));

}  // namespace
}  // namespace stretto
