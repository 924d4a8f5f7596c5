#include "stretto/server/output_format.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "stretto/base/printable.h"
#include "stretto/server/api_error.h"

namespace stretto {
namespace {

using grammar::Asked;
using grammar::OrderedJson;

// Keys in order cost the square of their number.
constexpr std::size_t kMostKeys = 2048;
constexpr std::size_t kMostChoices = 4096;
constexpr std::size_t kMostSchemaBytes = std::size_t{1} << 20;

void check_keys(const Json& json) {
  if (json.is_object() && json.size() > kMostKeys) {
    throw ApiError(
        400, fmt::format("request: an object has {} keys, at most {}", json.size(), kMostKeys));
  }
  if (json.is_structured()) {
    for (const Json& one : json) check_keys(one);
  }
}

class FormatReader {
 public:
  FormatReader(const RequestReader& reader, const Json& json, std::string_view body)
      : reader_(reader), json_(json), body_(body) {}

  std::optional<OutputFormat> read() {
    read_response_format();
    read_structured_outputs();
    static constexpr std::pair<const char*, const char*> kFields[] = {
        {"guided_json", "json"},       {"guided_regex", "regex"}, {"guided_choice", "choice"},
        {"guided_grammar", "grammar"}, {"grammar", "grammar"},    {"json_schema", "json"}};
    for (const auto& [field, kind] : kFields) {
      if (const Json* value = reader_.fields().find(field)) {
        add(field, kind, *value, [field = field](const OrderedJson& all) { return all.at(field); });
      }
    }
    if (out_) {
      if (reader_.boolean("ignore_eos", false)) fail_beside("ignore_eos");
      constexpr std::int64_t kMost = RequestReader::kMostTokens;
      if (reader_.integer("min_tokens", 0, 0, kMost) > 0) fail_beside("min_tokens");
      if (reader_.fields().find("allowed_token_ids") != nullptr) fail_beside("allowed_token_ids");
    }
    return std::move(out_);
  }

 private:
  // Where the form and the field may leave no token to draw.
  void fail_beside(const char* field) const {
    reader_.fail(field, "does not go with " + out_->field);
  }

  using InOrder = std::function<OrderedJson(const OrderedJson&)>;

  Asked& only(const char* field) {
    if (out_) {
      reader_.fail(field, fmt::format("only one field may constrain the answer, and {} does, too",
                                      out_->field));
    }
    out_ = OutputFormat{.field = field, .asked = {}};
    return out_->asked;
  }

  // `at` finds the value in the body with its keys in order.
  void add(const char* field, std::string_view kind, const Json& value, const InOrder& at) {
    Asked& asked = only(field);
    if (kind == "json") {
      add_schema(field, value, at, asked);
    } else if (kind == "choice") {
      asked.kind = Asked::Kind::kChoice;
      if (!value.is_array() || value.empty() || value.size() > kMostChoices) {
        reader_.fail(field, fmt::format("need a list of 1 to {} texts", kMostChoices));
      }
      for (const Json& one : value) {
        if (!one.is_string()) reader_.fail(field, "need texts, got " + quote_json(one));
        asked.choices.push_back(one.get<std::string>());
      }
    } else {
      asked.kind = kind == "regex" ? Asked::Kind::kRegex : Asked::Kind::kGbnf;
      if (!value.is_string()) reader_.fail(field, "need a text, got " + quote_json(value));
      asked.text = value.get<std::string>();
    }
  }

  void add_schema(const char* field, const Json& value, const InOrder& at, Asked& asked) {
    asked.kind = Asked::Kind::kSchema;
    if (value.is_string()) {  // vLLM takes the schema's text, too
      const auto text = value.get<std::string>();
      const Json parsed = reader_.checked(
          field, [&] { return parse_json(text, field, {.max_bytes = kMostSchemaBytes}); });
      asked.schema = in_order(parsed, text);
    } else {
      asked.schema = at(in_order(json_, body_));
    }
    if (asked.schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).size() >
        kMostSchemaBytes) {
      reader_.fail(field, fmt::format("a schema has at most {} bytes", kMostSchemaBytes));
    }
  }

  void read_response_format() {
    static constexpr const char* kField = "response_format";
    const Json* value = reader_.fields().find(kField);
    if (value == nullptr) return;
    if (!value->is_object()) reader_.fail(kField, "need an object");
    const Json type = value->value("type", Json());
    if (type == "text") return;
    if (type == "json_object") {
      if (value->contains("schema")) {
        return add(kField, "json", value->at("schema"),
                   [](const OrderedJson& all) { return all.at(kField).at("schema"); });
      }
      only(kField).kind = Asked::Kind::kObject;
    } else if (type == "json_schema") {
      const Json its = value->value("json_schema", Json());
      if (!its.is_object() || !its.contains("schema")) {
        reader_.fail(kField,
                     "need {\"type\": \"json_schema\", \"json_schema\": {\"name\": ..., "
                     "\"schema\": ...}}");
      }
      add(kField, "json", its.at("schema"),
          [](const OrderedJson& all) { return all.at(kField).at("json_schema").at("schema"); });
    } else {
      reader_.fail(kField,
                   "need a type of text, json_object or json_schema, got " + quote_json(type));
    }
  }

  void read_structured_outputs() {
    static constexpr const char* kField = "structured_outputs";
    const Json* value = reader_.fields().find(kField);
    if (value == nullptr) return;
    if (!value->is_object()) reader_.fail(kField, "need an object");
    bool is_compact = false;
    for (const auto& [key, one] : value->items()) {
      static constexpr std::array kKinds = {"json", "regex", "choice", "grammar"};
      if (one.is_null()) continue;
      if (std::find(kKinds.begin(), kKinds.end(), key) != kKinds.end()) {
        add(kField, key, one,
            [key = key](const OrderedJson& all) { return all.at(kField).at(key); });
      } else if (!one.is_boolean()) {
        reader_.fail(kField, "'" + printable(key, 60) + "' is not supported");
      } else if (key == "json_object") {
        if (one.get<bool>()) only(kField).kind = Asked::Kind::kObject;
      } else if (key == "disable_any_whitespace") {
        is_compact = one.get<bool>();
      } else if (key != "disable_fallback" && key != "disable_additional_properties") {
        reader_.fail(kField, "'" + printable(key, 60) + "' is not supported");
      }
    }
    if (!out_ || out_->field != kField) {
      reader_.fail(kField, "need one of json, json_object, regex, choice and grammar");
    }
    out_->asked.is_compact = is_compact;
  }

  const RequestReader& reader_;
  const Json& json_;
  std::string_view body_;
  std::optional<OutputFormat> out_;
};

}  // namespace

OrderedJson in_order(const Json& json, std::string_view text) {
  check_keys(json);
  return OrderedJson::parse(text.begin(), text.end());
}

std::optional<OutputFormat> read_output_format(const RequestReader& reader, const Json& json,
                                               std::string_view body) {
  return FormatReader(reader, json, body).read();
}

}  // namespace stretto
