// A config read wrongly gives fluent nonsense, or a crash deep inside a kernel; here it must become
// one clear line.
#include "stretto/model/checkpoint/config.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"
#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto::config_test {
namespace {

Json base_config(const char* model_type) {
  Json config = {{"model_type", model_type},
                 {"hidden_size", 8},
                 {"intermediate_size", 12},
                 {"num_hidden_layers", 3},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 2},
                 {"vocab_size", 10},
                 {"rms_norm_eps", 1e-5},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", 64}};
  return config;
}

// The base config with these fields replaced; null removes one.
Json with(const char* model_type, const Json& changes) {
  Json config = base_config(model_type);
  config.merge_patch(changes);
  return config;
}

ModelConfig parse(const Json& config) { return parse_config(config.dump(), "config.json"); }

void refuse_llama(const Json& changes, const std::vector<std::string>& parts) {
  SCOPED_TRACE(changes.dump());
  expect_user_error([&] { parse(with("llama", changes)); }, parts);
}

std::vector<std::int64_t> windows(const ModelConfig& config) {
  std::vector<std::int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

using List = std::vector<std::int64_t>;

TEST(Config, FamiliesDifferInTheirTraits) {
  ModelConfig llama =
      parse(with("llama", {{"attention_bias", true}, {"mlp_bias", true}, {"sliding_window", 4}}));
  EXPECT_EQ(llama.traits->family, Family::kLlama);
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  EXPECT_FALSE(llama.traits->qk_norm);
  EXPECT_EQ(windows(llama), (List{0, 0, 0}));  // Llama knows no window, whatever the file says
  ModelConfig mistral = parse(with("mistral", {{"sliding_window", 4}, {"attention_bias", true}}));
  EXPECT_FALSE(mistral.qkv_bias || mistral.out_bias || mistral.mlp_bias);
  EXPECT_EQ(windows(mistral), (List{4, 4, 4}));
  ModelConfig qwen2 = parse(base_config("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias || qwen2.mlp_bias || qwen2.traits->qk_norm);
  ModelConfig qwen3 = parse(with("qwen3", {{"head_dim", nullptr}}));
  EXPECT_TRUE(qwen3.traits->qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128);  // not hidden_size / num_attention_heads in this family
  Json by_architecture =
      with("llama", {{"model_type", nullptr}, {"architectures", {"Qwen3ForCausalLM"}}});
  EXPECT_EQ(parse(by_architecture).traits->family, Family::kQwen3);
}

TEST(Config, QwenWindowsNeedToBeAskedFor) {
  Json window = {{"sliding_window", 4}, {"max_window_layers", 1}};
  EXPECT_EQ(windows(parse(with("qwen2", window))), (List{0, 0, 0}));
  window["use_sliding_window"] = true;
  EXPECT_EQ(windows(parse(with("qwen2", window))), (List{0, 4, 4}));
  EXPECT_EQ(windows(parse(with("qwen3", window))), (List{0, 4, 4}));
  window["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows(parse(with("qwen3", window))), (List{4, 0, 4}));
  window["use_sliding_window"] = false;
  expect_user_error([&] { parse(with("qwen3", window)); }, {"layer_types", "no sliding_window"});
}

TEST(Config, LayerTypesAreChecked) {
  refuse_llama({{"layer_types", {"full_attention"}}}, {"layer_types", "1 entries", "3"});
  refuse_llama({{"layer_types", {"full_attention", "linear_attention", "full_attention"}}},
               {"layer_types", "'linear_attention'", "full_attention"});
  refuse_llama({{"layer_types", {"full_attention", 3, "full_attention"}}},
               {"layer_types", "string"});
}

TEST(Config, MixturesOfExpertsInBothSpellings) {
  Json moe = {{"num_experts", 4},           {"num_experts_per_tok", 2},
              {"moe_intermediate_size", 6}, {"norm_topk_prob", true},
              {"decoder_sparse_step", 2},   {"mlp_only_layers", Json::array()}};
  ModelConfig qwen = parse(with("qwen3_moe", moe));
  ASSERT_TRUE(qwen.moe.has_value());
  EXPECT_EQ(qwen.moe->num_experts, 4);
  EXPECT_EQ(qwen.moe->experts_per_token, 2);
  EXPECT_EQ(qwen.moe->intermediate_size, 6);
  EXPECT_TRUE(qwen.moe->normalize_weights);
  EXPECT_FALSE(qwen.layers[0].moe);
  EXPECT_TRUE(qwen.layers[1].moe);
  EXPECT_FALSE(qwen.layers[2].moe);
  moe["decoder_sparse_step"] = 1;
  moe["mlp_only_layers"] = {1};
  moe["num_experts"] = nullptr;
  moe["num_local_experts"] = 5;
  qwen = parse(with("qwen3_moe", moe));
  EXPECT_EQ(qwen.moe->num_experts, 5);
  EXPECT_TRUE(qwen.layers[0].moe);
  EXPECT_FALSE(qwen.layers[1].moe);
  ModelConfig mixtral =
      parse(with("mixtral", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}}));
  EXPECT_EQ(mixtral.moe->num_experts, 8);
  EXPECT_EQ(mixtral.moe->intermediate_size, 12);
  EXPECT_TRUE(mixtral.moe->normalize_weights);
  EXPECT_EQ(mixtral.rope.theta, 1e6);
  moe["num_experts"] = 4;
  expect_user_error([&] { parse(with("qwen3_moe", moe)); },
                    {"num_experts is 4", "num_local_experts is 5", "agree"});
  expect_user_error(
      [&] {
        parse(with("mixtral", {{"num_experts_per_tok", 2}}));
      },
      {"num_experts", "num_local_experts"});
  expect_user_error(
      [&] {
        parse(with("mixtral", {{"num_local_experts", 2}, {"num_experts_per_tok", 3}}));
      },
      {"num_experts_per_tok", "from 1 to 2"});
}

TEST(Config, RoutingIsReadOrRefusedButNeverIgnored) {
  Json base = {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 6}};
  auto moe_of = [&](const Json& changes) {
    Json config = base;
    config.update(changes);
    return *parse(with("qwen3_moe", config)).moe;
  };
  MoeConfig plain = moe_of({{"router_aux_loss_coef", 0.1}, {"n_shared_experts", 0}});
  EXPECT_FALSE(plain.sigmoid_scores || plain.choice_bias || plain.normalize_weights);
  EXPECT_EQ(plain.num_groups, 1);
  EXPECT_EQ(plain.weight_scale, 1);
  Json deepseek = {
      {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}, {"n_group", 4},
      {"topk_group", 2},           {"norm_topk_prob", true},    {"routed_scaling_factor", 2.5}};
  MoeConfig full = moe_of(deepseek);
  EXPECT_TRUE(full.sigmoid_scores && full.choice_bias && full.groups_by_best_two);
  EXPECT_TRUE(full.normalize_weights);
  EXPECT_EQ(full.num_groups, 4);
  EXPECT_EQ(full.groups_per_token, 2);
  EXPECT_EQ(full.weight_scale, 2.5);
  deepseek["topk_method"] = "group_limited_greedy";
  full = moe_of(deepseek);
  EXPECT_FALSE(full.choice_bias || full.groups_by_best_two);
  auto refuse = [&](const Json& changes, const std::vector<std::string>& parts) {
    SCOPED_TRACE(changes.dump());
    expect_user_error([&] { moe_of(changes); }, parts);
  };
  refuse({{"scoring_func", "tanh"}}, {"scoring_func", "'tanh'", "softmax, sigmoid"});
  refuse({{"topk_method", "other"}}, {"topk_method", "'other'", "noaux_tc"});
  refuse({{"n_group", 4}, {"topk_group", 2}}, {"topk_method", "greedy", "2 of n_group 4"});
  Json limited = {{"topk_method", "noaux_tc"}, {"n_group", 3}, {"topk_group", 2}};
  refuse(limited, {"n_group", "3 groups", "8 experts"});
  limited["n_group"] = 8;
  refuse(limited, {"n_group", "8 groups", "8 experts"});
  limited["n_group"] = 4;
  limited["topk_group"] = 1;
  limited["num_experts_per_tok"] = 3;
  refuse(limited, {"topk_group", "2 experts", "num_experts_per_tok is 3"});
  limited["topk_group"] = 5;
  refuse(limited, {"topk_group", "from 1 to 4"});
  refuse({{"routed_scaling_factor", -1}}, {"routed_scaling_factor"});
  for (const char* field : {"n_shared_experts", "first_k_dense_replace", "moe_layer_freq",
                            "router_bias", "shared_expert_intermediate_size"}) {
    refuse({{field, 2}}, {field, "not supported"});
  }
}

TEST(Config, RotaryEmbeddingInAllSpellings) {
  EXPECT_EQ(parse(base_config("llama")).rope.theta, 1e4);
  EXPECT_EQ(parse(with("llama", {{"rope_theta", 500000}})).rope.theta, 5e5);
  EXPECT_EQ(
      parse(with("llama", {{"rope_parameters", {{"rope_theta", 7e5}, {"rope_type", "default"}}}}))
          .rope.theta,
      7e5);
  RopeConfig linear = parse(with("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
                                           {"rope_theta", 1e5}}))
                          .rope;
  EXPECT_EQ(linear.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(linear.factor, 2.0);
  EXPECT_EQ(linear.theta, 1e5);
  Json llama3 = {{"rope_type", "llama3"},  {"factor", 8.0},
                 {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                 {"rope_theta", 500000.0}, {"original_max_position_embeddings", 8192}};
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    RopeConfig rope = parse(with("llama", {{field, llama3}})).rope;
    EXPECT_EQ(rope.type, RopeConfig::Type::kLlama3);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.low_freq_factor, 1.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 8192);
    EXPECT_EQ(rope.theta, 5e5);
  }
}

TEST(Config, ReadsYarn) {
  Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  auto rope_of = [&] {
    return parse(with("llama", {{"rope_scaling", yarn}, {"max_position_embeddings", 5000}})).rope;
  };
  RopeConfig rope = rope_of();
  EXPECT_EQ(rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(rope.beta_fast, 32.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_TRUE(rope.truncate);
  EXPECT_EQ(rope.original_max_position_embeddings, 5000);
  EXPECT_NEAR(rope.attention_factor, 1.1386294, 1e-6);
  yarn["original_max_position_embeddings"] = 32768;
  yarn["truncate"] = false;
  yarn["mscale"] = 1.0;
  yarn["mscale_all_dim"] = 0.5;
  rope = rope_of();
  EXPECT_EQ(rope.original_max_position_embeddings, 32768);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_NEAR(rope.attention_factor, 1.1386294 / 1.0693147, 1e-6);
  yarn["attention_factor"] = 0.75;
  EXPECT_EQ(rope_of().attention_factor, 0.75);
}

TEST(Config, RotaryFrequenciesAreRoundedOnlyWhenAsked) {
  ModelConfig config = parse(with("llama", {{"torch_dtype", "bfloat16"}}));
  EXPECT_EQ(config.rope.frequency_dtype, DType::kF32);
  set_rope_frequencies(config, "checkpoint-dtype");
  EXPECT_EQ(config.rope.frequency_dtype, DType::kBF16);
  set_rope_frequencies(config, "exact");
  EXPECT_EQ(config.rope.frequency_dtype, DType::kF32);
  expect_user_error([&] { set_rope_frequencies(config, "rounded"); },
                    {"rope-frequencies", "'rounded'", "exact", "checkpoint-dtype"});
  ModelConfig silent = parse(base_config("llama"));
  expect_user_error([&] { set_rope_frequencies(silent, "checkpoint-dtype"); },
                    {"config.json", "dtype", "missing"});
}

TEST(Config, RotaryEmbeddingThatIsNotSupportedIsNamed) {
  refuse_llama({{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}}},
               {"rope_scaling", "rope_type", "'longrope'", "yarn"});
  refuse_llama({{"rope_scaling", {{"type", "ntk"}, {"factor", 4}}}},
               {"rope_scaling: type", "'ntk'"});
  refuse_llama({{"rope_scaling", {{"type", "yarn"}}}}, {"rope_scaling: factor", "missing"});
  refuse_llama({{"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 0.5}}}},
               {"beta_fast", "at least beta_slow"});
  refuse_llama({{"rope_theta", 1}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}},
               {"rope_theta", "more than 1"});
  refuse_llama({{"rope_scaling", {{"type", "linear"}}}}, {"rope_scaling: factor", "missing"});
  refuse_llama({{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}, {"rope_scaling: factor"});
  refuse_llama({{"rope_scaling", "linear"}}, {"rope_scaling", "need a JSON object"});
  refuse_llama({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}},
               {"rope_parameters", "'full_attention'", "per layer type"});
  refuse_llama({{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor"});
  refuse_llama({{"rope_theta", 0}}, {"rope_theta"});
  refuse_llama({{"rope_theta", -1e4}}, {"rope_theta"});
  refuse_llama({{"rope_theta", "10000"}}, {"rope_theta"});
  Json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 4.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 8192}};
  refuse_llama({{"rope_scaling", llama3}}, {"high_freq_factor", "more than low_freq_factor"});
  llama3["low_freq_factor"] = 1;
  llama3.erase("original_max_position_embeddings");
  refuse_llama({{"rope_scaling", llama3}}, {"original_max_position_embeddings", "missing"});
}

TEST(Config, SizesAreBounded) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const Json& bad : {Json(0), Json(-1), Json(1ull << 40), Json(18446744073709551615ull),
                            Json(2.5), Json("8"), Json::array({8}), Json(true)}) {
      refuse_llama({{field, bad}}, {"config.json", field});
    }
  }
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads"}) {
    refuse_llama({{field, nullptr}}, {"config.json", field, "missing"});
  }
  refuse_llama({{"num_key_value_heads", 3}}, {"num_key_value_heads", "does not divide"});
  refuse_llama({{"num_key_value_heads", 8}}, {"num_key_value_heads", "does not divide"});
  refuse_llama({{"head_dim", 3}}, {"head_dim", "even"});
  refuse_llama({{"head_dim", nullptr}, {"hidden_size", 10}}, {"head_dim", "does not divide"});
  refuse_llama({{"head_dim", 8192}, {"num_attention_heads", 16384}},
               {"num_attention_heads", "wider"});
  refuse_llama({{"rms_norm_eps", -1e-5}}, {"rms_norm_eps"});
  refuse_llama({{"rms_norm_eps", 2}}, {"rms_norm_eps"});
  EXPECT_EQ(parse(with("llama", {{"head_dim", nullptr}})).head_dim, 2);
  EXPECT_EQ(parse(with("llama", {{"num_key_value_heads", nullptr}})).num_kv_heads, 4);
}

TEST(Config, WhatIsNotSupportedIsNamed) {
  refuse_llama({{"model_type", "gpt2"}},
               {"model_type", "unknown family 'gpt2'", "llama", "qwen3_moe"});
  refuse_llama({{"model_type", nullptr}}, {"model_type", "missing", "llama"});
  refuse_llama({{"model_type", nullptr}, {"architectures", {"GPT2LMHeadModel"}}},
               {"architectures", "GPT2LMHeadModel"});
  refuse_llama({{"architectures", {"Qwen2ForCausalLM"}}},
               {"architectures", "does not fit model_type 'llama'"});
  refuse_llama({{"hidden_act", "gelu"}}, {"hidden_act", "'gelu'", "silu"});
  refuse_llama({{"quantization_config", {{"bits", 4}}}}, {"quantization_config", "quant_method"});
  refuse_llama({{"quantization_config", {{"quant_method", "awq"}}}},
               {"quantization_config", "'awq'", "weight_block_size [128, 128]", "--weights fp8"});
  refuse_llama({{"quantization_config", "fp8"}}, {"quantization_config"});
  refuse_llama({{"quantization_config", {{"kv_cache_scheme", {{"num_bits", 8}}}}}},
               {"quantization_config", "kv_cache_scheme"});
  refuse_llama({{"dtype", "float64"}}, {"dtype", "'float64'", "bfloat16"});
  refuse_llama({{"torch_dtype", 16}}, {"torch_dtype"});
  refuse_llama({{"tie_word_embeddings", 1}}, {"tie_word_embeddings", "true or false"});
  refuse_llama({{"attention_bias", "no"}}, {"attention_bias"});
  expect_user_error([] { parse_config("[]", "config.json"); },
                    {"config.json", "need a JSON object"});
  expect_user_error([] { parse_config("{\"model_type\": \"llama\", ", "config.json"); },
                    {"config.json", "not valid JSON"});
}

TEST(Config, DTypeAndSpecialTokens) {
  EXPECT_EQ(parse(base_config("llama")).dtype, std::nullopt);
  EXPECT_EQ(parse(with("llama", {{"torch_dtype", "float16"}})).dtype, DType::kF16);
  EXPECT_EQ(parse(with("llama", {{"dtype", "bfloat16"}})).dtype, DType::kBF16);
  EXPECT_TRUE(parse(base_config("llama")).eos_token_ids.empty());
  EXPECT_EQ(parse(with("llama", {{"eos_token_id", 9}})).eos_token_ids, (std::vector<int>{9}));
  EXPECT_EQ(parse(with("llama", {{"eos_token_id", {1, 9}}})).eos_token_ids,
            (std::vector<int>{1, 9}));
  EXPECT_EQ(parse(with("llama", {{"bos_token_id", 0}})).bos_token_id, 0);
  refuse_llama({{"eos_token_id", 10}}, {"eos_token_id", "to 9"});
  EXPECT_EQ(parse(with("llama", {{"eos_token_id", {1, -1}}})).eos_token_ids,
            (std::vector<int>{1}));  // -1 is how some files spell none
  refuse_llama({{"eos_token_id", {1, -2}}}, {"eos_token_id"});
  refuse_llama({{"bos_token_id", {1, 2}}}, {"bos_token_id"});
}

// Two sources of one fact: silent where they agree, told where they do not, never refused.
TEST(Config, ContradictionsAreTold) {
  const auto warnings = [](const Json& changes) { return parse(with("llama", changes)).warnings; };
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_TRUE(warnings({{"dtype", "float16"}, {"torch_dtype", "torch.float16"}}).empty());
  EXPECT_EQ(warnings({{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}).size(), 1u);
  EXPECT_TRUE(warnings({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 5e5}}}}).empty());
  EXPECT_TRUE(warnings({{"rope_parameters", linear}, {"rope_scaling", linear}}).empty());
  EXPECT_TRUE(warnings({{"rope_parameters", linear}, {"rope_scaling", Json::object()}}).empty());
  ModelConfig theta =
      parse(with("llama", {{"rope_theta", 7e4}, {"rope_parameters", {{"rope_theta", 5e5}}}}));
  EXPECT_EQ(theta.rope.theta, 5e5);
  ASSERT_EQ(theta.warnings.size(), 1u);
  for (const char* part : {"rope_parameters: rope_theta is 500000", "rope_theta is 70000", "taken"})
    EXPECT_NE(theta.warnings[0].find(part), std::string::npos) << theta.warnings[0];
  // As transformers: a rope_scaling goes before rope_parameters, with the base that it can see.
  ModelConfig both =
      parse(with("llama", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
                           {"rope_scaling", linear}}));
  EXPECT_EQ(both.rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(both.rope.theta, 1e4);
  EXPECT_EQ(both.warnings.size(), 2u);
  Json two_types = linear;
  two_types["type"] = "dynamic";
  EXPECT_EQ(warnings({{"rope_scaling", two_types}}).size(), 1u);
}

// A checkpoint with the weights that a tiny dense config needs, out of the reference list below.
struct TinyWeights {
  explicit TinyWeights(bool bias, bool qk_norm, bool tied) {
    add("model.embed_tokens.weight", {10, 8});
    for (int i = 0; i < 3; ++i) {
      std::string layer = "model.layers." + std::to_string(i) + ".";
      for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        add(layer + norm, {8});
      add(layer + "self_attn.q_proj.weight", {8, 8});
      add(layer + "self_attn.k_proj.weight", {4, 8});
      add(layer + "self_attn.v_proj.weight", {4, 8});
      add(layer + "self_attn.o_proj.weight", {8, 8});
      if (bias) {
        add(layer + "self_attn.q_proj.bias", {8});
        add(layer + "self_attn.k_proj.bias", {4});
        add(layer + "self_attn.v_proj.bias", {4});
      }
      if (qk_norm) add(layer + "self_attn.q_norm.weight", {2});
      if (qk_norm) add(layer + "self_attn.k_norm.weight", {2});
      add(layer + "mlp.gate_proj.weight", {12, 8});
      add(layer + "mlp.up_proj.weight", {12, 8});
      add(layer + "mlp.down_proj.weight", {8, 12});
    }
    add("model.norm.weight", {8});
    if (!tied) add("lm_head.weight", {10, 8});
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape,
           const char* dtype = "F16") {
    std::int64_t bytes = std::string(dtype) == "I32" ? 4 : 2;
    for (std::int64_t extent : shape) bytes *= extent;
    tensors.push_back({name, dtype, shape, std::string(static_cast<std::size_t>(bytes), 'x')});
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const HonestTensor& t) { return t.name == name; });
  }
  void check(const Json& config) const {
    TemporaryDirectory dir;
    dir.write("model.safetensors", safetensors_bytes(tensors));
    dir.write("config.json", config.dump());
    Checkpoint checkpoint(dir.path());
    read_config(dir.path()).check_against(checkpoint);
  }
  std::vector<HonestTensor> tensors;
};

TEST(ConfigCheck, MatchingWeightsPassForEveryDenseFamily) {
  EXPECT_NO_THROW(TinyWeights(false, false, false).check(base_config("llama")));
  EXPECT_NO_THROW(
      TinyWeights(false, false, true).check(with("mistral", {{"tie_word_embeddings", true}})));
  EXPECT_NO_THROW(TinyWeights(true, false, false).check(base_config("qwen2")));
  EXPECT_NO_THROW(TinyWeights(false, true, false).check(base_config("qwen3")));
}

TEST(ConfigCheck, EveryWeightIsMissedWhenItIsGone) {
  TinyWeights weights(true, false, false);
  for (const HonestTensor& tensor : weights.tensors) {
    TinyWeights damaged = weights;
    damaged.remove(tensor.name);
    expect_user_error([&] { damaged.check(base_config("qwen2")); },
                      {"tensor '" + tensor.name + "'", "missing", "config.json"});
  }
}

TEST(ConfigCheck, EveryShapeIsCompared) {
  TinyWeights weights(true, false, false);
  for (const HonestTensor& tensor : weights.tensors) {
    TinyWeights damaged = weights;
    damaged.remove(tensor.name);
    std::vector<std::int64_t> shape = tensor.shape;
    shape.back() += 1;
    damaged.add(tensor.name, shape);
    expect_user_error([&] { damaged.check(base_config("qwen2")); },
                      {"tensor '" + tensor.name + "'", "expected shape " + to_string(tensor.shape),
                       "found " + to_string(shape)});
  }
}

TEST(ConfigCheck, WeightsThatTheConfigDoesNotExplain) {
  TinyWeights bias(true, false, false);
  expect_user_error([&] { bias.check(base_config("llama")); },
                    {"self_attn.k_proj.bias", "not part of the model"});
  TinyWeights plain(false, false, false);
  expect_user_error(
      [&] {
        plain.check(with("llama", {{"num_hidden_layers", 2}}));
      },
      {"model.layers.2.", "not part of the model"});
  expect_user_error(
      [&] {
        plain.check(with("llama", {{"num_hidden_layers", 4}}));
      },
      {"model.layers.3.", "missing"});
  expect_user_error([&] { plain.check(base_config("qwen3")); }, {"q_norm.weight", "missing"});
  plain.add("model.layers.0.self_attn.rotary_emb.inv_freq", {1});
  EXPECT_NO_THROW(plain.check(base_config("llama")));
  EXPECT_NO_THROW(
      plain.check(with("llama", {{"tie_word_embeddings", true}})));  // lm_head.weight is left over
  plain.remove("model.norm.weight");
  plain.tensors.insert(plain.tensors.begin(),
                       {"model.norm.weight", "I32", {8}, std::string(32, 'x')});
  expect_user_error([&] { plain.check(base_config("llama")); },
                    {"model.norm.weight", "int32", "need float32"});
}

}  // namespace
}  // namespace stretto::config_test
