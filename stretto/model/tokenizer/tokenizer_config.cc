#include "stretto/model/tokenizer/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"

namespace stretto::tokenization {
namespace {

constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "pad_token", "unk_token"};

// A path ends with ": " while it names the file only.
std::string name_of_file(std::string path) {
  if (path.ends_with(": ")) path.resize(path.size() - 2);
  return path;
}

class Comparison {
 public:
  Comparison(const JsonNode& config, const LoadedTokenizer& loaded)
      : config_(config), loaded_(loaded), file_(name_of_file(loaded.file)) {}

  Warnings run() {
    for (const char* name : kNamedTokens) has_token(name);
    const auto text = std::find(loaded_.around.begin(), loaded_.around.end(), kText);
    puts_token("bos_token", "add_bos_token", {loaded_.around.begin(), text});
    puts_token("eos_token", "add_eos_token", {text, loaded_.around.end()});
    added_tokens();
    return std::move(warnings_);
  }

 private:
  void has_token(const char* name) {
    const auto token = configured_token(config_, name);
    if (!token || loaded_.id_of(*token)) return;
    warnings_.push_back(fmt::format("{}{} is '{}', but {} has no such token; it is not used",
                                    config_.path(), name, printable(*token), file_));
  }

  // As transformers since 5: the template of tokenizer.json counts.
  void puts_token(const char* name, const char* flag, const std::vector<int>& ids) {
    const auto asked = config_.find(flag);
    const auto token = configured_token(config_, name);
    if (!asked || !asked->json().is_boolean() || !token) return;
    const auto id = loaded_.id_of(*token);
    const bool puts = id && std::find(ids.begin(), ids.end(), *id) != ids.end();
    if (!id || asked->flag() == puts) return;
    warnings_.push_back(
        fmt::format("{}: post_processor puts {} '{}' at a text, but {} is {}; the "
                    "first is taken",
                    file_, puts ? "the" : "no", printable(*token), asked->path(), asked->flag()));
  }

  // The first entry that tells something else, and how many do.
  void added_tokens() {
    const auto entries = config_.find("added_tokens_decoder");
    if (!entries || !entries->json().is_object()) return;
    std::size_t count = 0;
    std::string first;
    for (const auto& [key, entry] : entries->json().items()) {
      const std::string found = difference(key, entry);
      if (found.empty()) continue;
      if (count++ == 0) first = found;
    }
    if (count == 0) return;
    warnings_.push_back(fmt::format("{}{}; the latter is taken", first,
                                    count == 1 ? "" : fmt::format(", and {} more", count - 1)));
  }

  std::string difference(const std::string& key, const Json& entry) const {
    int id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_entry = error == std::errc() && end == key.data() + key.size() &&
                          entry.is_object() && entry.contains("content") &&
                          entry["content"].is_string();
    const std::string where = config_.path() + "added_tokens_decoder." + printable(key);
    if (!is_entry)
      return where + " is no token with its id, but " + file_ + " has tokens of its own";
    const auto& content = entry["content"].get_ref<const std::string&>();
    const AddedToken* known = loaded_.added->find(id);
    if (known == nullptr || known->content != content) {
      return fmt::format(
          "{} is '{}', but {} has {}", where, printable(content), file_,
          known ? "'" + printable(known->content) + "' there" : "no added token of that id");
    }
    const std::pair<const char*, bool> flags[] = {{"single_word", known->single_word},
                                                  {"lstrip", known->lstrip},
                                                  {"rstrip", known->rstrip},
                                                  {"normalized", known->normalized},
                                                  {"special", known->special}};
    for (const auto& [flag, value] : flags) {
      const auto told = entry.find(flag);
      if (told == entry.end() || *told == value) continue;
      return fmt::format("{}.{} is {}, but {} says {} of '{}'", where, flag, quote_json(*told),
                         file_, value, printable(content));
    }
    return "";
  }

  const JsonNode& config_;
  const LoadedTokenizer& loaded_;
  std::string file_;
  Warnings warnings_;
};

}  // namespace

std::optional<std::string> configured_token(const JsonNode& config, const char* name) {
  const auto field = config.find(name);
  if (!field) return std::nullopt;
  return field->json().is_object() ? field->at("content").text() : field->text();
}

Warnings compare_with_config(const JsonNode& config, const LoadedTokenizer& loaded) {
  return Comparison(config, loaded).run();
}

Warnings compare_names(const JsonNode& config, const JsonNode& map) {
  Warnings warnings;
  for (const char* name : kNamedTokens) {
    auto source = [&](const JsonNode& file) {
      std::optional<std::string> token = configured_token(file, name);
      if (token) token = "'" + printable(*token) + "'";
      return Source<std::string>{file.path() + name, std::move(token)};
    };
    const Source<std::string> taken = source(config);
    if (taken.value) settle<std::string>({taken, source(map)}, warnings);
  }
  return warnings;
}

}  // namespace stretto::tokenization
