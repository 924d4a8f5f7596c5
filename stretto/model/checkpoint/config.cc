#include "stretto/model/checkpoint/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "stretto/base/errors.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;

// Bounds generous for any model of these families and small enough that every product of two or
// three of them, in bytes, stays inside 63 bits.
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 1 << 14;
constexpr std::int64_t kMaxHeadDim = 1 << 13;
constexpr std::int64_t kMaxExperts = 1 << 14;
constexpr std::int64_t kMaxPositions = 1 << 30;

constexpr std::array<FamilyTraits, 6> kFamilies = {{
    {.family = Family::kLlama,
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .qkv_bias = Knob::kFromConfig,
     .out_bias = Knob::kFromConfig,
     .mlp_bias = Knob::kFromConfig,
     .qk_norm = false,
     .window = WindowRule::kNone,
     .moe = false,
     .default_head_dim = 0,
     .default_rope_theta = 1e4},
    {.family = Family::kMistral,
     .model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .qkv_bias = Knob::kNever,
     .out_bias = Knob::kNever,
     .mlp_bias = Knob::kNever,
     .qk_norm = false,
     .window = WindowRule::kAllLayers,
     .moe = false,
     .default_head_dim = 0,
     .default_rope_theta = 1e4},
    {.family = Family::kQwen2,
     .model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias = Knob::kAlways,
     .out_bias = Knob::kNever,
     .mlp_bias = Knob::kNever,
     .qk_norm = false,
     .window = WindowRule::kUpperIfAsked,
     .moe = false,
     .default_head_dim = 0,
     .default_rope_theta = 1e4},
    {.family = Family::kQwen3,
     .model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .qkv_bias = Knob::kFromConfig,
     .out_bias = Knob::kFromConfig,
     .mlp_bias = Knob::kNever,
     .qk_norm = true,
     .window = WindowRule::kUpperIfAsked,
     .moe = false,
     .default_head_dim = 128,
     .default_rope_theta = 1e4},
    {.family = Family::kMixtral,
     .model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .qkv_bias = Knob::kNever,
     .out_bias = Knob::kNever,
     .mlp_bias = Knob::kNever,
     .qk_norm = false,
     .window = WindowRule::kAllLayers,
     .moe = true,
     .default_head_dim = 0,
     .default_rope_theta = 1e6},
    {.family = Family::kQwen3Moe,
     .model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .qkv_bias = Knob::kFromConfig,
     .out_bias = Knob::kFromConfig,
     .mlp_bias = Knob::kNever,
     .qk_norm = true,
     .window = WindowRule::kAllIfAsked,
     .moe = true,
     .default_head_dim = 0,
     .default_rope_theta = 1e4},
}};

// model_type decides; architectures, where given, must agree with it or stand in for it.
const FamilyTraits& find_family(const JsonFields& fields) {
  std::optional<std::string> type = fields.optional_text("model_type");
  auto architectures = fields.optional_texts("architectures", 16);
  for (const FamilyTraits& traits : kFamilies) {
    bool listed = architectures && std::find(architectures->begin(), architectures->end(),
                                             traits.architecture) != architectures->end();
    if (type ? *type != traits.model_type : !listed) continue;
    if (type && architectures && !architectures->empty() && !listed) {
      fields.fail("architectures", fmt::format("'{}' does not fit model_type '{}', need '{}'",
                                               printable(architectures->front()), traits.model_type,
                                               traits.architecture));
    }
    return traits;
  }
  std::string known;
  for (const FamilyTraits& traits : kFamilies) {
    known += fmt::format(" {} ({})", traits.model_type, traits.architecture);
  }
  if (!type && !(architectures && !architectures->empty())) {
    fields.fail("model_type", fmt::format("missing; known families:{}", known));
  }
  fields.fail(type ? "model_type" : "architectures",
              fmt::format("unknown family '{}'; known:{}",
                          printable(type ? *type : architectures->front()), known));
}

// A field with a newer and an older spelling; both may be present when they agree.
std::optional<std::int64_t> either(const JsonFields& fields, const char* newer, const char* older,
                                   std::int64_t min, std::int64_t max) {
  auto first = fields.optional_integer(newer, min, max);
  auto second = fields.optional_integer(older, min, max);
  if (first && second && *first != *second) {
    fields.fail(newer, fmt::format("{} contradicts {}, which is {}", *first, older, *second));
  }
  return first ? first : second;
}

RopeConfig::Type rope_type(const JsonFields& fields) {
  const char* field = fields.has("rope_type") ? "rope_type" : "type";
  std::string type = fields.optional_text(field).value_or("default");
  if (type == "default") return RopeConfig::Type::kDefault;
  if (type == "linear") return RopeConfig::Type::kLinear;
  if (type == "dynamic") return RopeConfig::Type::kDynamic;
  if (type == "yarn") return RopeConfig::Type::kYarn;
  if (type == "llama3") return RopeConfig::Type::kLlama3;
  fields.fail(field,
              fmt::format("'{}' is not supported; supported: default, linear, dynamic, yarn, "
                          "llama3",
                          printable(type)));
}

void read_llama3(const JsonFields& config, const JsonFields& rope, RopeConfig& out) {
  out.low_freq_factor = rope.number("low_freq_factor", 1e-3, 1e6);
  out.high_freq_factor = rope.number("high_freq_factor", 1e-3, 1e6);
  if (out.high_freq_factor <= out.low_freq_factor) {
    rope.fail("high_freq_factor", fmt::format("{} must be more than low_freq_factor {}",
                                              out.high_freq_factor, out.low_freq_factor));
  }
  const char* original = "original_max_position_embeddings";
  const JsonFields& holder = rope.has(original) ? rope : config;
  out.original_max_position_embeddings = holder.integer(original, 1, kMaxPositions);
}

// What cosines and sines are multiplied by (YaRN, arXiv 2309.00071, section 3.4): as given, as the
// ratio of two given scales (DeepSeek's spelling), or 0.1 ln(factor) + 1.
double yarn_attention_factor(const JsonFields& rope, double factor) {
  constexpr double kMost = 1e3;
  auto given = rope.optional_number("attention_factor", 0, kMost);
  auto scale = rope.optional_number("mscale", 0, kMost);
  auto scale_all = rope.optional_number("mscale_all_dim", 0, kMost);
  if (given) return *given;
  double grown = factor > 1 ? 0.1 * std::log(factor) : 0.0;
  if (scale.value_or(0) > 0 && scale_all.value_or(0) > 0) {
    return (*scale * grown + 1) / (*scale_all * grown + 1);
  }
  return grown + 1;
}

// `factor` and the original positions are taken as they stand, also where their product is not
// max_position_embeddings; releases of the reference implementation differ there.
void read_yarn(const JsonFields& config, const JsonFields& rope, std::int64_t max_positions,
               RopeConfig& out) {
  out.beta_fast = rope.optional_number("beta_fast", 1e-3, 1e6).value_or(32);
  out.beta_slow = rope.optional_number("beta_slow", 1e-3, 1e6).value_or(1);
  if (out.beta_fast < out.beta_slow) {
    rope.fail("beta_fast",
              fmt::format("{} must be at least beta_slow {}", out.beta_fast, out.beta_slow));
  }
  if (out.theta <= 1) config.fail("rope_theta", "must be more than 1 with rope type yarn");
  out.truncate = rope.optional_boolean("truncate").value_or(true);
  out.attention_factor = yarn_attention_factor(rope, out.factor);
  const char* original = "original_max_position_embeddings";
  const JsonFields& holder = rope.has(original) ? rope : config;
  out.original_max_position_embeddings =
      holder.optional_integer(original, 1, kMaxPositions).value_or(max_positions);
}

void refuse_partial_rotary(const JsonFields& fields) {
  if (fields.optional_number("partial_rotary_factor", 0, 1).value_or(1.0) != 1.0) {
    fields.fail("partial_rotary_factor", "only 1 is supported");
  }
}

// Newer files: rope_parameters with the base inside. Older ones: rope_theta beside an optional
// rope_scaling.
RopeConfig read_rope(const JsonFields& config, const FamilyTraits& traits,
                     std::int64_t max_positions) {
  constexpr double kMinTheta = 1.0;
  constexpr double kMaxTheta = 1e15;
  RopeConfig rope;
  rope.theta = config.optional_number("rope_theta", kMinTheta, kMaxTheta)
                   .value_or(traits.default_rope_theta);
  refuse_partial_rotary(config);
  const char* field = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Json* object = config.find(field);
  if (object == nullptr) return rope;
  JsonFields fields(*object, fmt::format("{}: {}", config.where(), field));
  for (const auto& [key, value] : object->items()) {
    if (value.is_object()) {
      config.fail(field,
                  fmt::format("'{}': parameters per layer type are not supported", printable(key)));
    }
  }
  refuse_partial_rotary(fields);
  rope.theta = fields.optional_number("rope_theta", kMinTheta, kMaxTheta).value_or(rope.theta);
  rope.type = rope_type(fields);
  if (rope.type != RopeConfig::Type::kDefault) rope.factor = fields.number("factor", 1e-3, 1e6);
  if (rope.type == RopeConfig::Type::kLlama3) read_llama3(config, fields, rope);
  if (rope.type == RopeConfig::Type::kYarn) read_yarn(config, fields, max_positions, rope);
  return rope;
}

bool has_window(const FamilyTraits& traits, const JsonFields& fields) {
  bool asked = fields.optional_boolean("use_sliding_window").value_or(false);
  switch (traits.window) {
    case WindowRule::kNone:
      return false;
    case WindowRule::kAllLayers:
      return true;
    case WindowRule::kUpperIfAsked:
    case WindowRule::kAllIfAsked:
      return asked;
  }
  throw InternalError("has_window: bad rule");
}

void read_windows(const JsonFields& fields, ModelConfig& config) {
  std::int64_t window = fields.optional_integer("sliding_window", 1, kMaxPositions).value_or(0);
  if (!has_window(*config.traits, fields)) window = 0;
  std::int64_t first = 0;
  if (config.traits->window == WindowRule::kUpperIfAsked) {
    first = fields.optional_integer("max_window_layers", 0, kMaxLayers).value_or(28);
  }
  auto types = fields.optional_texts("layer_types", kMaxLayers);
  if (types && types->size() != config.layers.size()) {
    fields.fail("layer_types", fmt::format("has {} entries for num_hidden_layers {}", types->size(),
                                           config.layers.size()));
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    bool sliding = static_cast<std::int64_t>(i) >= first && window > 0;
    if (types) {
      const std::string& type = (*types)[i];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention") {
        fields.fail("layer_types", fmt::format("'{}' is not supported; supported: full_attention, "
                                               "sliding_attention",
                                               printable(type)));
      }
      if (sliding && window == 0) {
        fields.fail("layer_types", "asks for sliding_attention, but no sliding_window is in force");
      }
    }
    config.layers[i].window = sliding ? window : 0;
  }
}

// Fields that say something about experts are read, or change training alone; another one would
// change what the model computes without a word.
void refuse_unknown_moe_fields(const Json& object, const JsonFields& fields) {
  constexpr std::string_view kKnown[] = {"num_experts",          "num_local_experts",
                                         "num_experts_per_tok",  "moe_intermediate_size",
                                         "decoder_sparse_step",  "mlp_only_layers",
                                         "norm_topk_prob",       "scoring_func",
                                         "topk_method",          "n_group",
                                         "topk_group",           "routed_scaling_factor",
                                         "output_router_logits", "router_aux_loss_coef",
                                         "router_jitter_noise",  "experts_implementation"};
  constexpr std::string_view kWords[] = {"expert", "moe",     "rout",   "topk",
                                         "scor",   "n_group", "sparse", "first_k_dense"};
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    bool about = std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view word) {
      return key.find(word) != std::string::npos;
    });
    bool known = std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown);
    bool off = value.is_null() || value == false || value == 0;
    if (about && !known && !off) {
      fields.fail(printable(key).c_str(), "not supported in a mixture of experts of this family");
    }
  }
}

// The groups that a token's experts are limited to.
void read_expert_groups(const JsonFields& fields, const std::string& method, MoeConfig& moe) {
  moe.num_groups = fields.optional_integer("n_group", 1, moe.num_experts).value_or(1);
  moe.groups_per_token =
      fields.optional_integer("topk_group", 1, moe.num_groups).value_or(moe.num_groups);
  if (moe.groups_per_token == moe.num_groups) {
    moe.num_groups = moe.groups_per_token = 1;
    return;
  }
  if (method == "greedy") {
    fields.fail("topk_method", fmt::format("'greedy' chooses among all experts, but topk_group is "
                                           "{} of n_group {}",
                                           moe.groups_per_token, moe.num_groups));
  }
  std::int64_t of_group = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || of_group < (moe.groups_by_best_two ? 2 : 1)) {
    fields.fail("n_group",
                fmt::format("{} groups cannot share {} experts", moe.num_groups, moe.num_experts));
  }
  if (std::int64_t most = moe.groups_per_token * of_group; moe.experts_per_token > most) {
    fields.fail("topk_group", fmt::format("{} groups have {} experts, num_experts_per_tok is {}",
                                          moe.groups_per_token, most, moe.experts_per_token));
  }
}

// One of `allowed`, or the first of them where the field is absent.
std::string choice(const JsonFields& fields, const char* field,
                   const std::vector<std::string>& allowed) {
  std::string text = fields.optional_text(field).value_or(allowed.front());
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  fields.fail(field, fmt::format("'{}' is not supported; supported: {}", printable(text),
                                 fmt::join(allowed, ", ")));
}

void read_routing(const JsonFields& fields, bool normalizes, MoeConfig& moe) {
  constexpr double kMostScale = 1e3;
  moe.normalize_weights = fields.optional_boolean("norm_topk_prob").value_or(normalizes);
  moe.sigmoid_scores = choice(fields, "scoring_func", {"softmax", "sigmoid"}) == "sigmoid";
  std::string method =
      choice(fields, "topk_method", {"greedy", "group_limited_greedy", "noaux_tc"});
  moe.choice_bias = moe.groups_by_best_two = method == "noaux_tc";
  moe.weight_scale = fields.optional_number("routed_scaling_factor", 0, kMostScale).value_or(1);
  read_expert_groups(fields, method, moe);
}

void read_moe(const Json& object, const JsonFields& fields, ModelConfig& config) {
  if (!config.traits->moe) return;
  refuse_unknown_moe_fields(object, fields);
  MoeConfig moe;
  auto experts = either(fields, "num_experts", "num_local_experts", 1, kMaxExperts);
  if (!experts) fields.fail("num_experts", "missing (also spelled num_local_experts)");
  moe.num_experts = *experts;
  moe.experts_per_token = fields.integer("num_experts_per_tok", 1, moe.num_experts);
  bool qwen = config.traits->family == Family::kQwen3Moe;
  moe.intermediate_size =
      qwen ? fields.integer("moe_intermediate_size", 1, kMaxWidth) : config.intermediate_size;
  read_routing(fields, !qwen, moe);
  std::int64_t step = 1;
  std::vector<std::int64_t> dense;
  if (qwen) {
    step = fields.optional_integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
    dense = fields.integers("mlp_only_layers", 0, config.num_layers() - 1);
  }
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    config.layers[static_cast<std::size_t>(i)].moe = !listed && (i + 1) % step == 0;
  }
  config.moe = moe;
}

void read_attention_sizes(const JsonFields& fields, ModelConfig& config) {
  config.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads =
      fields.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.fail("num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}",
                                                   config.num_kv_heads, config.num_heads));
  }
  std::int64_t fallback = config.traits->default_head_dim;
  if (fallback == 0 && !fields.has("head_dim")) {
    if (config.hidden_size % config.num_heads != 0) {
      fields.fail("head_dim", fmt::format("missing, and num_attention_heads {} does not divide "
                                          "hidden_size {}",
                                          config.num_heads, config.hidden_size));
    }
    fallback = config.hidden_size / config.num_heads;
  }
  config.head_dim = fields.optional_integer("head_dim", 2, kMaxHeadDim).value_or(fallback);
  if (config.head_dim % 2 != 0 || config.head_dim < 2 || config.head_dim > kMaxHeadDim) {
    fields.fail("head_dim", fmt::format("need an even number from 2 to {} for the rotary "
                                        "embedding, got {}",
                                        kMaxHeadDim, config.head_dim));
  }
  if (config.num_heads * config.head_dim > kMaxWidth) {
    fields.fail("num_attention_heads", fmt::format("{} heads of {} are wider than {}",
                                                   config.num_heads, config.head_dim, kMaxWidth));
  }
}

bool read_knob(Knob knob, const JsonFields& fields, const char* field) {
  bool asked = fields.optional_boolean(field).value_or(false);
  return knob == Knob::kAlways || (knob == Knob::kFromConfig && asked);
}

std::optional<DType> read_dtype(const JsonFields& fields) {
  const char* field = fields.has("dtype") ? "dtype" : "torch_dtype";
  std::optional<std::string> text = fields.optional_text(field);
  if (!text) return std::nullopt;
  std::string_view spelled = *text;
  if (spelled.starts_with("torch.")) spelled.remove_prefix(6);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (spelled == name(dtype)) return dtype;
  }
  fields.fail(field, fmt::format("'{}' is not supported; supported: float32, float16, bfloat16",
                                 printable(*text)));
}

void read_special_tokens(const JsonFields& fields, ModelConfig& config) {
  auto bos = fields.integers("bos_token_id", 0, config.vocab_size - 1);
  if (bos.size() > 1) fields.fail("bos_token_id", "need one token id");
  if (!bos.empty()) config.bos_token_id = static_cast<int>(bos.front());
  for (std::int64_t id : fields.integers("eos_token_id", 0, config.vocab_size - 1)) {
    config.eos_token_ids.push_back(static_cast<int>(id));
  }
}

void refuse_unsupported(const JsonFields& fields) {
  std::string activation = fields.optional_text("hidden_act").value_or("silu");
  if (activation != "silu") {
    fields.fail("hidden_act",
                fmt::format("'{}' is not supported; supported: silu", printable(activation)));
  }
  if (fields.has("quantization_config")) {
    fields.fail("quantization_config", "quantised weights are not supported");
  }
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& where) {
  Json json = parse_json(text, where, {.max_bytes = kMaxConfigBytes, .max_depth = 32});
  JsonFields fields(json, where);
  ModelConfig config;
  config.where = where;
  config.traits = &find_family(fields);
  refuse_unsupported(fields);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxWidth);
  config.layers.resize(
      static_cast<std::size_t>(fields.integer("num_hidden_layers", 1, kMaxLayers)));
  config.max_positions =
      fields.optional_integer("max_position_embeddings", 1, kMaxPositions).value_or(2048);
  config.rms_norm_eps = fields.optional_number("rms_norm_eps", 0, 1).value_or(1e-6);
  read_attention_sizes(fields, config);
  config.rope = read_rope(fields, *config.traits, config.max_positions);
  read_windows(fields, config);
  read_moe(json, fields, config);
  config.qkv_bias = read_knob(config.traits->qkv_bias, fields, "attention_bias");
  config.out_bias = read_knob(config.traits->out_bias, fields, "attention_bias");
  config.mlp_bias = read_knob(config.traits->mlp_bias, fields, "mlp_bias");
  config.tie_word_embeddings = fields.optional_boolean("tie_word_embeddings").value_or(false);
  config.dtype = read_dtype(fields);
  read_special_tokens(fields, config);
  return config;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  std::filesystem::path path = directory / "config.json";
  return parse_config(read_file(path, kMaxConfigBytes), path.string());
}

void set_rope_frequencies(ModelConfig& config, std::string_view choice) {
  if (choice == "exact") {
    config.rope.frequency_dtype = DType::kF32;
  } else if (choice == "checkpoint-dtype") {
    if (!config.dtype) {
      throw UserError(fmt::format("{}: dtype is missing, and rope-frequencies {} rounds to it",
                                  config.where, choice));
    }
    config.rope.frequency_dtype = *config.dtype;
  } else {
    throw UserError(
        fmt::format("rope-frequencies '{}': need exact or checkpoint-dtype", printable(choice)));
  }
}

}  // namespace stretto
