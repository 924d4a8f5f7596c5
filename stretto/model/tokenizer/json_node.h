// A value inside a parsed JSON file together with its path, so that every complaint about a
// tokenizer file names the file and the field: "DIR/tokenizer.json: model.merges[17]: ...". Readers
// throw UserError.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stretto::tokenization {

// No token id of a file may reach this; it bounds the tables that are indexed by id.
inline constexpr int kMaxTokenIds = 1 << 22;

// Refers to the document, which must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  [[noreturn]] void fail(std::string_view reason) const;

  JsonNode at(std::string_view key) const;                   // UserError when absent
  std::optional<JsonNode> find(std::string_view key) const;  // nothing when absent or null
  std::vector<JsonNode> items() const;                       // of an array
  std::string type() const { return at("type").text(); }     // the tag of a tokenizer component

  const std::string& text() const;
  bool flag() const;
  int count() const;     // integer from 0 to 2^31 - 1
  int token_id() const;  // integer from 0 to kMaxTokenIds - 1

  bool flag_or(std::string_view key, bool otherwise) const;
  std::string text_or(std::string_view key, std::string otherwise) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace stretto::tokenization
