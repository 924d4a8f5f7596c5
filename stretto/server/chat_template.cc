#include "stretto/server/chat_template.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;
constexpr std::size_t kMostPromptBytes = std::size_t{64} << 20;  // twice a request's
constexpr JsonLimits kConfigLimits{.max_bytes = std::size_t{64} << 20};

// {"default": ...}, of a text or of a list of {"name", "template"}.
void read_named(const Json& found, const std::string& where,
                std::map<std::string, std::string>& out) {
  if (found.is_string()) {
    out["default"] = found.get<std::string>();
    return;
  }
  if (!found.is_array()) throw UserError(where + ": chat_template: need a text or a list");
  for (const Json& one : found) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string() ||
        !one.contains("template") || !one["template"].is_string()) {
      throw UserError(where + ": chat_template: need a list of a name and a template each");
    }
    out[one["name"].get<std::string>()] = one["template"].get<std::string>();
  }
}

void read_jinja_files(const std::filesystem::path& directory,
                      std::map<std::string, std::string>& out) {
  const auto main = directory / "chat_template.jinja";
  if (std::filesystem::exists(main)) out["default"] = read_file(main, kMostBytes);
  const auto more = directory / "additional_chat_templates";
  if (!std::filesystem::is_directory(more)) return;
  for (const auto& entry : std::filesystem::directory_iterator(more)) {
    if (entry.path().extension() != ".jinja") continue;
    out[entry.path().stem().string()] = read_file(entry.path(), kMostBytes);
  }
}

// A token is a text, or an object with its content.
std::optional<std::string> token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

ChatTemplates ChatTemplates::load(const std::filesystem::path& directory, const std::string& file) {
  ChatTemplates out;
  Json config = Json::object();
  const auto config_path = directory / "tokenizer_config.json";
  if (std::filesystem::exists(config_path)) config = read_json_file(config_path, kConfigLimits);
  if (!config.is_object()) throw UserError(config_path.string() + ": need a JSON object");
  for (const auto& [name, token] : config.items()) {
    if (!name.ends_with("_token")) continue;
    if (auto text = token_text(token)) {
      out.special_tokens_.emplace_back(name, jinja::Value::text(*text));
    }
  }
  std::string where = directory.string();
  if (!file.empty()) {
    out.sources_["default"] = read_file(file, kMostBytes);
    where = file;
  } else {
    read_jinja_files(directory, out.sources_);
    const auto json_path = directory / "chat_template.json";
    if (out.sources_.empty() && std::filesystem::exists(json_path)) {
      Json json = read_json_file(json_path, kConfigLimits);
      if (json.is_object() && json.contains("chat_template")) {
        read_named(json["chat_template"], json_path.string(), out.sources_);
      }
    }
    if (out.sources_.empty() && config.contains("chat_template") &&
        !config["chat_template"].is_null()) {
      read_named(config["chat_template"], config_path.string(), out.sources_);
    }
  }
  if (out.sources_.empty()) {
    out.missing_ = "the model has no chat template; start the server with --chat-template FILE";
  }
  for (const auto& [name, source] : out.sources_) {
    const std::string shown = name == "default" ? "chat template" : "chat template '" + name + "'";
    try {
      out.templates_.emplace(name, jinja::Template::parse(source, shown));
    } catch (const UserError& e) {
      if (!file.empty()) throw UserError(where + ": " + e.what());
      out.missing_ = e.what();
    }
  }
  return out;
}

const jinja::Template& ChatTemplates::choose(const std::string& name, bool has_tools) const {
  if (!name.empty()) {
    if (auto at = templates_.find(name); at != templates_.end()) return at->second;
    throw UserError(fmt::format("there is no chat template '{}'", printable(name, 100)));
  }
  if (auto at = templates_.find("tool_use"); has_tools && at != templates_.end()) return at->second;
  if (auto at = templates_.find("default"); at != templates_.end()) return at->second;
  if (!missing_.empty()) throw UserError(missing_);
  throw UserError("there is no chat template 'default'; chat_template names one of the model's");
}

ChatPrompt render_chat(const jinja::Template& chosen, const ChatVariables& variables,
                       const Tokenizer& tokenizer, bool add_special_tokens,
                       const CheckText& check) {
  ChatPrompt out;
  out.pieces = chosen.render(variables);
  std::size_t bytes = 0;
  for (const jinja::Piece& piece : out.pieces) bytes += piece.text.size();
  if (bytes > kMostPromptBytes) {
    throw UserError(
        fmt::format("the prompt has {} bytes, at most {} are read", bytes, kMostPromptBytes));
  }
  if (check) check(bytes);
  EncodeOptions options{.add_special_tokens = add_special_tokens};
  for (const jinja::Piece& piece : out.pieces) {
    const std::size_t begin = out.text.size();
    out.text += piece.text;
    if (piece.is_user) options.plain_ranges.emplace_back(begin, out.text.size());
  }
  out.ids = tokenizer.encode(out.text, options);
  return out;
}

}  // namespace stretto
