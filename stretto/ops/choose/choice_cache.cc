#include "stretto/ops/choose/choice_cache.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;
constexpr double kMostMs = 1e9;

std::filesystem::path path_of(const std::string& key) {
  return env_cache_dir() / "choices" / fmt::format("{:016x}.json", std::hash<std::string>{}(key));
}

}  // namespace

std::optional<Choice> read_choice(const std::string& key) {
  std::filesystem::path path = path_of(key);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    Json json = read_json_file(path, {.max_bytes = kMaxBytes});
    JsonFields fields(json, path.string());
    if (fields.text("key") != key) return std::nullopt;
    return Choice{.is_sequence = fields.optional_boolean("is_sequence").value_or(false),
                  .config = fields.text("config"),
                  .predicted_ms = fields.number("predicted_ms", 0, kMostMs),
                  .measured_ms = fields.number("measured_ms", 0, kMostMs),
                  .from_cache = true};
  } catch (const Error&) {  // damaged: chosen again
    return std::nullopt;
  }
}

void keep_choice(const std::string& key, const Choice& choice) {
  std::filesystem::path path = path_of(key);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  Json json = {{"key", key},
               {"config", choice.config},
               {"is_sequence", choice.is_sequence},
               {"predicted_ms", choice.predicted_ms},
               {"measured_ms", choice.measured_ms}};
  try {
    AtomicFile file(path);
    file.write(json.dump(1) + "\n");
    file.commit();
  } catch (const Error&) {  // a read-only cache costs time, nothing else
    return;
  }
}

}  // namespace stretto
