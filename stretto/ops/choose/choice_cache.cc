#include "stretto/ops/choose/choice_cache.h"

#include <fmt/format.h>

#include <functional>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/own_files.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;
constexpr double kMostMs = 1e9;

SealedFolder choices() { return SealedFolder(env_cache_dir() / "choices"); }

std::string name_of(const std::string& key) {
  return fmt::format("{:016x}.json", std::hash<std::string>{}(key));
}

}  // namespace

std::optional<ConfigChoice> read_choice(const std::string& key) {
  std::optional<std::string> kept = choices().read(name_of(key), kMaxBytes);
  if (!kept) return std::nullopt;
  try {
    std::string name = choices().path(name_of(key)).string();
    Json json = parse_json(*kept, name);
    JsonFields fields(json, name);
    if (fields.text("key") != key) return std::nullopt;
    return ConfigChoice{.is_sequence = fields.optional_boolean("is_sequence").value_or(false),
                        .config = fields.text("config"),
                        .predicted_ms = fields.number("predicted_ms", 0, kMostMs),
                        .measured_ms = fields.number("measured_ms", 0, kMostMs),
                        .from_cache = true};
  } catch (const Error&) {  // of another version: chosen again
    return std::nullopt;
  }
}

void keep_choice(const std::string& key, const ConfigChoice& choice) {
  Json json = {{"key", key},
               {"config", choice.config},
               {"is_sequence", choice.is_sequence},
               {"predicted_ms", choice.predicted_ms},
               {"measured_ms", choice.measured_ms}};
  // A read-only cache costs time, nothing else.
  std::error_code not_kept = choices().write(name_of(key), json.dump(1) + "\n");
  static_cast<void>(not_kept);
}

std::filesystem::path turn_of_choice(const std::string& key) {
  std::filesystem::path path = choices().path(name_of(key)).replace_extension(".lock");
  make_own_folder(path.parent_path());  // where that fails each process ranks
  return path;
}

}  // namespace stretto
