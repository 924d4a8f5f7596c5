#include "stretto/model/checkpoint/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/base/python_json.h"
#include "stretto/model/checkpoint/config_parts.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxConfigBytes = 4 << 20;

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
     .default_rope_theta = 1e4,
     .default_max_positions = 2048,
     .default_rms_norm_eps = 1e-6},
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
     .default_rope_theta = 1e4,
     .default_kv_heads = 8,
     .default_max_positions = 131072,
     .default_window = 4096,
     .default_rms_norm_eps = 1e-6},
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
     .default_rope_theta = 1e4,
     .default_kv_heads = 32,
     .default_max_positions = 32768,
     .default_window = 4096,
     .default_rms_norm_eps = 1e-6},
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
     .default_rope_theta = 1e4,
     .default_kv_heads = 32,
     .default_max_positions = 32768,
     .default_window = 4096,
     .default_rms_norm_eps = 1e-6},
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
     .default_rope_theta = 1e6,
     .default_kv_heads = 8,
     .default_max_positions = 131072,
     .default_rms_norm_eps = 1e-5},
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
     .default_rope_theta = 1e4,
     .default_kv_heads = 4,
     .default_max_positions = 32768,
     .default_window = 4096,
     .default_rms_norm_eps = 1e-6},
}};

bool same_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// model_type decides; architectures, where given, must agree with it or stand in for it.
const FamilyTraits& find_family(const JsonFields& fields) {
  std::optional<std::string> type = fields.optional_text("model_type");
  auto architectures = fields.optional_texts("architectures", 16);
  for (const FamilyTraits& traits : kFamilies) {
    // Some files spell the same class LLaMAForCausalLM.
    bool listed =
        architectures && std::any_of(architectures->begin(), architectures->end(),
                                     [&](const std::string& architecture) {
                                       return same_but_for_case(architecture, traits.architecture);
                                     });
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
  std::int64_t window = 0;
  if (has_window(*config.traits, fields)) {
    window = fields.optional_integer("sliding_window", 1, kMaxPositions).value_or(0);
    if (!fields.names("sliding_window")) window = config.traits->default_window;
  }
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

void read_attention_sizes(const JsonFields& fields, ModelConfig& config) {
  config.num_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads =
      fields.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_heads);
  if (!fields.names("num_key_value_heads") && config.traits->default_kv_heads > 0) {
    config.num_kv_heads = config.traits->default_kv_heads;
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    const char* told = fields.names("num_key_value_heads") ? "" : "absent, meaning ";
    fields.fail("num_key_value_heads",
                fmt::format("{}{}, which does not divide num_attention_heads {}", told,
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

std::optional<DType> read_dtype(const JsonFields& fields, Warnings& warnings) {
  const char* field = fields.has("dtype") ? "dtype" : "torch_dtype";
  const auto told = [&](const char* spelling) {
    std::optional<std::string> text = fields.optional_text(spelling);
    if (text && text->starts_with("torch.")) text->erase(0, 6);
    return Source<std::string>{fmt::format("{}: {}", fields.where(), spelling), text};
  };
  const auto same = [](const std::string& a, const std::string& b) { return a == b; };
  auto text = settle<std::string>({told("dtype"), told("torch_dtype")}, warnings, same);
  if (!text || *text == "auto") return std::nullopt;
  std::string_view spelled = *text;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (spelled == name(dtype)) return dtype;
  }
  fields.fail(field, fmt::format("'{}' is not supported; supported: float32, float16, bfloat16",
                                 printable(*text)));
}

void read_special_tokens(const JsonFields& fields, ModelConfig& config) {
  // -1 is what some files write where they mean none.
  auto bos = fields.integers("bos_token_id", -1, config.vocab_size - 1);
  if (bos.size() > 1) fields.fail("bos_token_id", "need one token id");
  if (!bos.empty() && bos.front() >= 0) config.bos_token_id = static_cast<int>(bos.front());
  for (std::int64_t id : fields.integers("eos_token_id", -1, config.vocab_size - 1)) {
    if (id >= 0) config.eos_token_ids.push_back(static_cast<int>(id));
  }
}

void refuse_unsupported(const JsonFields& fields) {
  std::string activation = fields.optional_text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {  // two names of one function
    fields.fail("hidden_act",
                fmt::format("'{}' is not supported; supported: silu", printable(activation)));
  }
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& where) {
  Json json = parse_python_json(text, where, {.max_bytes = kMaxConfigBytes, .max_depth = 32});
  JsonFields fields(json, where);
  ModelConfig config;
  config.where = where;
  config.traits = &find_family(fields);
  refuse_unsupported(fields);
  config.product_weights = read_quantization(fields);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxWidth);
  config.layers.resize(
      static_cast<std::size_t>(fields.integer("num_hidden_layers", 1, kMaxLayers)));
  config.max_positions = fields.optional_integer("max_position_embeddings", 1, kMaxPositions)
                             .value_or(config.traits->default_max_positions);
  config.rms_norm_eps =
      fields.optional_number("rms_norm_eps", 0, 1).value_or(config.traits->default_rms_norm_eps);
  read_attention_sizes(fields, config);
  config.rope = read_rope(fields, *config.traits, config.max_positions, config.warnings);
  read_windows(fields, config);
  read_moe(json, fields, config);
  config.qkv_bias = read_knob(config.traits->qkv_bias, fields, "attention_bias");
  config.out_bias = read_knob(config.traits->out_bias, fields, "attention_bias");
  config.mlp_bias = read_knob(config.traits->mlp_bias, fields, "mlp_bias");
  config.tie_word_embeddings = fields.optional_boolean("tie_word_embeddings").value_or(false);
  config.dtype = read_dtype(fields, config.warnings);
  read_special_tokens(fields, config);
  return config;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  check_model_directory(directory);
  std::filesystem::path path = directory / "config.json";
  return parse_config(read_downloaded_file(path, kMaxConfigBytes), path.string());
}

void set_weights(ModelConfig& config, std::string_view choice) {
  if (choice == "fp8") {
    if (!config.has_fp8_products()) config.product_weights = ProductWeights::kFp8Made;
  } else if (choice != "auto") {
    throw UserError(fmt::format("weights '{}': need auto or fp8", printable(choice)));
  }
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
