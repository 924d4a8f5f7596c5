#include "stretto/model/checkpoint/generation_config.h"

#include <algorithm>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/python_json.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxBytes = 4 << 20;

GenerationConfig from_model(const ModelConfig& model) {
  return {.bos_token_id = model.bos_token_id, .eos_token_ids = model.eos_token_ids, .warnings = {}};
}

Json parse(std::string_view text, const std::string& where) {
  return parse_python_json(text, where, {.max_bytes = kMaxBytes, .max_depth = 32});
}

std::filesystem::path path_in(const std::filesystem::path& directory) {
  return directory / "generation_config.json";
}

// A file that ends at more tokens than the other one contradicts nothing.
bool one_holds_the_other(const std::vector<int>& a, const std::vector<int>& b) {
  const auto holds = [](const std::vector<int>& all, const std::vector<int>& some) {
    return std::all_of(some.begin(), some.end(),
                       [&](int id) { return std::find(all.begin(), all.end(), id) != all.end(); });
  };
  return holds(a, b) || holds(b, a);
}

// -1 and an empty list are what some files write where they mean nothing.
std::vector<int> token_ids(const JsonFields& fields, const char* field, std::int64_t last_id) {
  std::vector<int> ids;
  for (std::int64_t id : fields.integers(field, -1, last_id)) {
    if (id >= 0) ids.push_back(static_cast<int>(id));
  }
  return ids;
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, const std::string& where,
                                         const ModelConfig& model) {
  Json json = parse(text, where);
  JsonFields fields(json, where);
  GenerationConfig config = from_model(model);
  const std::int64_t last_id = model.vocab_size - 1;
  std::vector<int> bos = token_ids(fields, "bos_token_id", last_id);
  if (bos.size() > 1) fields.fail("bos_token_id", "need one token id");
  const auto path = [](const std::string& file, const char* field) {
    return fmt::format("{}: {}", file, field);
  };
  config.bos_token_id = settle<int>(
      {{path(where, "bos_token_id"), bos.empty() ? std::nullopt : std::optional(bos.front())},
       {path(model.where, "bos_token_id"), model.bos_token_id}},
      config.warnings);
  const auto told = [](const std::vector<int>& ids) {
    return ids.empty() ? std::nullopt : std::optional(ids);
  };
  config.eos_token_ids =
      settle<std::vector<int>>(
          {{path(where, "eos_token_id"), told(token_ids(fields, "eos_token_id", last_id))},
           {path(model.where, "eos_token_id"), told(model.eos_token_ids)}},
          config.warnings, one_holds_the_other)
          .value_or(std::vector<int>());
  return config;
}

SamplingDefaults parse_sampling_defaults(std::string_view text, const std::string& where) {
  Json json = parse(text, where);
  JsonFields fields(json, where);
  SamplingDefaults sampling;
  sampling.temperature = fields.optional_number("temperature", 0, 1000);
  sampling.top_k = fields.optional_integer("top_k", -1, std::int64_t{1} << 31);
  if (sampling.top_k == -1) sampling.top_k = 0;
  sampling.top_p = fields.optional_number("top_p", 0, 1);
  sampling.min_p = fields.optional_number("min_p", 0, 1);
  sampling.repetition_penalty = fields.optional_number("repetition_penalty", 1e-3, 1e3);
  return sampling;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const ModelConfig& model) {
  std::filesystem::path path = path_in(directory);
  if (is_absent(path)) return from_model(model);
  return parse_generation_config(read_downloaded_file(path, kMaxBytes), path.string(), model);
}

SamplingDefaults read_sampling_defaults(const std::filesystem::path& directory) {
  std::filesystem::path path = path_in(directory);
  if (is_absent(path)) return {};
  return parse_sampling_defaults(read_downloaded_file(path, kMaxBytes), path.string());
}

}  // namespace stretto
