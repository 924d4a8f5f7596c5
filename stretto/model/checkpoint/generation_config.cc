#include "stretto/model/checkpoint/generation_config.h"

#include "stretto/base/json_fields.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxBytes = 4 << 20;

GenerationConfig from_model(const ModelConfig& model) {
  return {.bos_token_id = model.bos_token_id, .eos_token_ids = model.eos_token_ids};
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, const std::string& where,
                                         const ModelConfig& model) {
  Json json = parse_json(text, where, {.max_bytes = kMaxBytes, .max_depth = 32});
  JsonFields fields(json, where);
  GenerationConfig config = from_model(model);
  std::int64_t last_id = model.vocab_size - 1;
  if (auto bos = fields.optional_integer("bos_token_id", 0, last_id)) {
    config.bos_token_id = static_cast<int>(*bos);
  }
  if (fields.has("eos_token_id")) {
    config.eos_token_ids.clear();
    for (std::int64_t id : fields.integers("eos_token_id", 0, last_id)) {
      config.eos_token_ids.push_back(static_cast<int>(id));
    }
  }
  config.do_sample = fields.optional_boolean("do_sample");
  config.temperature = fields.optional_number("temperature", 0, 1000);
  config.top_k = fields.optional_integer("top_k", 0, std::int64_t{1} << 31);
  config.top_p = fields.optional_number("top_p", 0, 1);
  config.min_p = fields.optional_number("min_p", 0, 1);
  config.repetition_penalty = fields.optional_number("repetition_penalty", 1e-3, 1e3);
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const ModelConfig& model) {
  std::filesystem::path path = directory / "generation_config.json";
  std::error_code error;
  // Only plain absence is silent; a file that cannot be examined or read is reported by read_file.
  if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) {
    return from_model(model);
  }
  return parse_generation_config(read_file(path, kMaxBytes), path.string(), model);
}

}  // namespace stretto
