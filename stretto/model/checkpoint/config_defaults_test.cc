// What config.json leaves out, and what it says that nothing reads. Losing any of this, a short
// file means another model here than in transformers, or a typo passes for a setting.
#include <gtest/gtest.h>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"
#include "stretto/model/checkpoint/checkpoint.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/checkpoint/generation_config.h"

namespace stretto::config_defaults_test {
namespace {

Json short_config(const char* model_type, const Json& more = {}) {
  Json config = {{"model_type", model_type}, {"vocab_size", 10},        {"hidden_size", 128},
                 {"intermediate_size", 12},  {"num_hidden_layers", 1},  {"num_attention_heads", 32},
                 {"num_experts", 4},         {"num_experts_per_tok", 2}};
  if (std::string(model_type) == "qwen3_moe") config["moe_intermediate_size"] = 8;
  for (const auto& [key, value] : more.items()) config[key] = value;
  return config;
}

ModelConfig parse(const Json& config) { return parse_config(config.dump(), "config.json"); }

struct Defaults {
  const char* model_type;
  std::int64_t kv_heads, max_positions, window, window_if_asked;
  double rms_norm_eps;
};

// The classes' defaults in transformers 5 (configuration_*.py).
constexpr Defaults kDefaults[] = {
    {"llama", 32, 2048, 0, 0, 1e-6},     {"mistral", 8, 131072, 4096, 4096, 1e-6},
    {"qwen2", 32, 32768, 0, 4096, 1e-6}, {"qwen3", 32, 32768, 0, 4096, 1e-6},
    {"mixtral", 8, 131072, 0, 0, 1e-5},  {"qwen3_moe", 4, 32768, 0, 4096, 1e-6}};

TEST(ConfigDefaults, AbsentFieldsMeanWhatTheyMeanInTransformers) {
  for (const Defaults& d : kDefaults) {
    SCOPED_TRACE(d.model_type);
    ModelConfig config = parse(short_config(d.model_type));
    EXPECT_EQ(config.num_kv_heads, d.kv_heads);
    EXPECT_EQ(config.max_positions, d.max_positions);
    EXPECT_EQ(config.rms_norm_eps, d.rms_norm_eps);
    EXPECT_EQ(config.layers[0].window, d.window);
    Json asked = short_config(d.model_type, {{"use_sliding_window", true}});
    asked["max_window_layers"] = 0;
    EXPECT_EQ(parse(asked).layers[0].window, d.window_if_asked);
  }
}

// As Mistral v0.2 and later, of which other engines kept the window of 4096 (axolotl#1214).
TEST(ConfigDefaults, NullMeansNone) {
  for (const Defaults& d : kDefaults) {
    SCOPED_TRACE(d.model_type);
    ModelConfig config = parse(short_config(d.model_type, {{"sliding_window", nullptr},
                                                           {"num_key_value_heads", nullptr},
                                                           {"use_sliding_window", true},
                                                           {"max_window_layers", 0}}));
    EXPECT_EQ(config.layers[0].window, 0);
    EXPECT_EQ(config.num_kv_heads, 32);
  }
}

TEST(ConfigDefaults, AWindowThatIsNotInForceIsNotRead) {
  for (const Json& window : {Json(0), Json(-1), Json(false)}) {
    for (const char* type : {"llama", "qwen2", "qwen3", "qwen3_moe"}) {
      EXPECT_EQ(parse(short_config(type, {{"sliding_window", window}})).layers[0].window, 0);
    }
    expect_user_error(
        [&] {
          parse(short_config("mistral", {{"sliding_window", window}}));
        },
        {"sliding_window", "from 1"});
  }
}

TEST(ConfigDefaults, HeadsThatTheDefaultDoesNotDivide) {
  expect_user_error(
      [] {
        parse(short_config("qwen2", {{"num_attention_heads", 4}}));
      },
      {"num_key_value_heads", "absent, meaning 32, which does not divide"});
}

// A seed that is refused at its first field leads a fuzzer nowhere.
TEST(FuzzSeeds, AreConfigs) {
  const std::filesystem::path seeds = "stretto/model/checkpoint/testdata/config_fuzz";
  ModelConfig model;
  model.vocab_size = 1000;
  for (const auto& entry : std::filesystem::directory_iterator(seeds)) {
    SCOPED_TRACE(entry.path());
    const std::string bytes = read_file(entry.path(), 1 << 16), text = bytes.substr(1);
    switch (bytes[0]) {
      case '0':
        parse_config(text, "seed");
        break;
      case '1':
        parse_generation_config(text, "seed", model);
        break;
      case '2':
        parse_shard_index(text, "seed");
        break;
      default:
        parse_sampling_defaults(text, "seed");
    }
  }
}

// As vllm-project/vllm#251 and ggml-org/llama.cpp#9485.
TEST(ConfigDefaults, ArchitecturesDifferInCase) {
  for (Json config : {short_config("llama", {{"architectures", {"LLaMAForCausalLM"}}}),
                      short_config("unused", {{"architectures", {"LLaMAForCausalLM"}},
                                              {"model_type", nullptr}})}) {
    EXPECT_EQ(parse(config).traits->family, Family::kLlama);
  }
  expect_user_error(
      [] {
        parse(short_config("llama", {{"architectures", {"LlamaModel"}}}));
      },
      {"architectures", "'LlamaModel'"});
}

// A factor without its type, a typo, a field of another type: each would change nothing, unseen.
TEST(ConfigDefaults, RotaryFieldsThatTheTypeDoesNotUseAreTold) {
  const auto told = [](const Json& rope, const char* part) {
    SCOPED_TRACE(rope.dump());
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      ModelConfig config = parse(short_config("llama", {{field, rope}}));
      ASSERT_EQ(config.warnings.size(), part == nullptr ? 0u : 1u);
      if (part == nullptr) continue;
      EXPECT_NE(config.warnings[0].find(std::string("config.json: ") + field + ": " + part),
                std::string::npos)
          << config.warnings[0];
    }
  };
  told({{"factor", 4.0}}, "'factor' is 4.0, which rope type default does not use");
  told({{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_positon_embeddings", 512}},
       "'original_max_positon_embeddings' is 512, which rope type yarn");
  told({{"type", "linear"}, {"factor", 2.0}, {"low_freq_factor", 1.0}}, "'low_freq_factor'");
  told({{"type", "dynamic"}, {"factor", 2.0}, {"alpha", 1000}}, "'alpha'");
  told({{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}},
       "'mrope_section' is an array of 3");
  told({{"rope_type", "default"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 1.0}}, nullptr);
  told({{"type", "linear"}, {"factor", 2.0}, {"low_freq_factor", nullptr}}, nullptr);
  told({{"type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}}, nullptr);
  told({{"type", "yarn"},
        {"factor", 2.0},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"attention_factor", 1.0},
        {"mscale", 1.0},
        {"mscale_all_dim", 1.0},
        {"truncate", true},
        {"original_max_position_embeddings", 1024}},
       nullptr);
  told({{"type", "llama3"},
        {"factor", 2.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 64}},
       nullptr);
}

TEST(ConfigDefaults, AYarnFactorThatPositionsContradictIsTold) {
  const auto warnings = [](double factor, std::int64_t original, std::int64_t positions) {
    Json rope = {{"rope_type", "yarn"},
                 {"factor", factor},
                 {"original_max_position_embeddings", original}};
    ModelConfig config = parse(short_config(
        "llama", {{"rope_parameters", rope}, {"max_position_embeddings", positions}}));
    EXPECT_EQ(config.rope.factor, factor);
    EXPECT_EQ(config.max_positions, positions);
    return config.warnings;
  };
  Warnings told = warnings(8, 256, 1024);
  ASSERT_EQ(told.size(), 1u);
  for (const char* part : {"rope_parameters: factor is 8, but",
                           "max_position_embeddings / original_max_position_embeddings is 4"}) {
    EXPECT_NE(told[0].find(part), std::string::npos) << told[0];
  }
  EXPECT_EQ(warnings(4, 256, 1024), Warnings());
  EXPECT_EQ(warnings(4, 1024, 1024), Warnings());  // a factor that a user added
}

}  // namespace
}  // namespace stretto::config_defaults_test
