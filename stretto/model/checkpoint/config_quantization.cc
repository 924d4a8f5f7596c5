// What config.json says of quantised weights. Read are those that DeepSeek-V3 (arXiv 2412.19437,
// section 3.3) and Qwen3-FP8 publish: e4m3 with a scale for each block of 128 x 128, activations
// quantised as they come.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/checkpoint/config_parts.h"

namespace stretto {
namespace {

constexpr const char* kField = "quantization_config";
constexpr const char* kWhatWorks =
    "what works: e4m3 weights with scales of blocks (quant_method fp8, weight_block_size [128, "
    "128], activation_scheme dynamic), or the model's unquantised checkpoint, with --weights fp8 "
    "to make them at loading";
constexpr std::size_t kMostModules = 1 << 20;

[[noreturn]] void refuse(const JsonFields& config, const std::string& what) {
  config.fail(kField, fmt::format("{}; {}", what, kWhatWorks));
}

// Some files name the method, others only what belongs to one.
std::string method_of(const JsonFields& quantization) {
  if (auto method = quantization.optional_text("quant_method")) return *method;
  for (const char* flag : {"load_in_4bit", "load_in_8bit"}) {
    if (quantization.has(flag)) return "bitsandbytes";
  }
  if (quantization.has("config_groups")) return "compressed-tensors";
  if (quantization.has("quant_algo")) return "modelopt";
  return quantization.has("w_bit") ? "awq" : "";
}

void check_text(const JsonFields& config, const JsonFields& quantization, const char* field,
                const char* read) {
  std::string text = quantization.optional_text(field).value_or(read);
  if (text == read) return;
  refuse(config, fmt::format("{} '{}' is not supported, {} is", field, printable(text), read));
}

// Every product of the layers is e4m3: a module that stays is none of theirs.
void check_modules(const JsonFields& config, const JsonFields& quantization) {
  for (const char* field : {"modules_to_not_convert", "ignored_layers"}) {
    auto modules = quantization.optional_texts(field, kMostModules);
    for (const std::string& module : modules.value_or(std::vector<std::string>{})) {
      if (!is_product_weight(module + ".weight")) continue;
      refuse(config, fmt::format("{} names '{}': a model whose layers' products are not all e4m3 "
                                 "is not supported",
                                 field, printable(module)));
    }
  }
}

}  // namespace

bool is_product_weight(std::string_view name) {
  if (!name.starts_with("model.layers.")) return false;
  return std::ranges::any_of(
      std::vector{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1",
                  "w2", "w3"},
      [&](const char* module) { return name.ends_with(fmt::format(".{}.weight", module)); });
}

std::string scales_name(std::string_view weight_name) {
  return fmt::format("{}_scale_inv", weight_name);
}

bool is_scales(std::string_view name) { return name.ends_with(".weight_scale_inv"); }

ProductWeights read_quantization(const JsonFields& config) {
  const Json* found = config.find(kField);
  if (found == nullptr) return ProductWeights::kStored;
  JsonFields quantization(*found, fmt::format("{}: {}", config.where(), kField));
  if (quantization.has("kv_cache_scheme")) {
    refuse(config,
           "the scales of kv_cache_scheme are not supported: an fp8 cache has scales of its own");
  }
  std::string method = method_of(quantization);
  if (method != "fp8") {
    refuse(config, method.empty() ? "has no quant_method"
                                  : fmt::format("weights of quant_method '{}' are not supported",
                                                printable(method)));
  }
  if (!quantization.has("weight_block_size")) {
    refuse(config,
           "has no weight_block_size: e4m3 with scales of whole tensors or of rows is not "
           "supported");
  }
  auto blocks = quantization.integers("weight_block_size", 1, kMaxWidth);
  if (blocks != std::vector<std::int64_t>{kWeightBlock, kWeightBlock}) {
    refuse(config, fmt::format("weight_block_size [{}] is not supported, [128, 128] is",
                               fmt::join(blocks, ", ")));
  }
  check_text(config, quantization, "activation_scheme", "dynamic");
  check_text(config, quantization, "fmt", "e4m3");
  check_modules(config, quantization);
  return ProductWeights::kFp8Stored;
}

}  // namespace stretto
