#include "stretto/model/tokenizer/json_node.h"

#include <fmt/format.h>

#include <limits>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto::tokenization {
namespace {

int integer_below(const JsonNode& field, std::uint64_t limit) {
  const Json& json = field.json();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() >= limit) {
    field.fail(fmt::format("need an integer from 0 to {}", limit - 1));
  }
  return static_cast<int>(json.get<std::uint64_t>());
}

// A path ends with ": " while it names the file only; fields below are joined by dots.
std::string joined(const std::string& path, std::string_view key) {
  return fmt::format("{}{}{}", path, path.ends_with(": ") ? "" : ".", printable(key));
}

}  // namespace

void JsonNode::fail(std::string_view reason) const {
  throw UserError(fmt::format("{}{}{}", path_, path_.ends_with(": ") ? "" : ": ", reason));
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) fail("need an object");
  const auto found = value_->find(key);
  if (found == value_->end()) JsonNode(*value_, joined(path_, key)).fail("is missing");
  return JsonNode(*found, joined(path_, key));
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!value_->is_object()) fail("need an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, joined(path_, key));
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) fail("need an array");
  std::vector<JsonNode> items;
  items.reserve(value_->size());
  for (const Json& item : *value_)
    items.emplace_back(item, fmt::format("{}[{}]", path_, items.size()));
  return items;
}

const std::string& JsonNode::text() const {
  if (!value_->is_string()) fail("need a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::flag() const {
  if (!value_->is_boolean()) fail("need true or false");
  return value_->get<bool>();
}

int JsonNode::count() const {
  return integer_below(*this, std::uint64_t{std::numeric_limits<int>::max()} + 1);
}

int JsonNode::token_id() const { return integer_below(*this, kMaxTokenIds); }

bool JsonNode::flag_or(std::string_view key, bool otherwise) const {
  const auto field = find(key);
  return field ? field->flag() : otherwise;
}

std::string JsonNode::text_or(std::string_view key, std::string otherwise) const {
  const auto field = find(key);
  return field ? field->text() : std::move(otherwise);
}

}  // namespace stretto::tokenization
