#include <optional>

#include "stretto/base/json.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/value.h"

namespace stretto::jinja {
namespace {

// Builds values as the parser goes: order and digits stay as they are in the text.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(Value::none()); }
  bool boolean(bool b) override { return add(Value::boolean(b)); }
  bool number_integer(std::int64_t i) override { return add(Value::integer(i)); }
  bool number_unsigned(std::uint64_t i) override {
    if (i <= static_cast<std::uint64_t>(INT64_MAX)) {
      return add(Value::integer(static_cast<std::int64_t>(i)));
    }
    return add(Value::big_integer(std::to_string(i)));
  }
  bool number_float(double d, const std::string& text) override {
    bool is_integer = text.find_first_of(".eE") == std::string::npos;
    return add(is_integer ? Value::big_integer(text) : Value::number(d));
  }
  bool string(std::string& text) override { return add(Value::text(to_text(text, Origin::kUser))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    open_.push_back({.is_object = true});
    return true;
  }
  bool key(std::string& text) override {
    open_.back().key = Value::text(to_text(text, Origin::kUser));
    return true;
  }
  bool end_object() override {
    Dict dict = std::move(open_.back().dict);
    open_.pop_back();
    return add(Value::dict(std::move(dict)));
  }
  bool start_array(std::size_t) override {
    open_.push_back({});
    return true;
  }
  bool end_array() override {
    Values items = std::move(open_.back().items);
    open_.pop_back();
    return add(Value::list(std::move(items)));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw TemplateError(e.what());
  }

  Value done() const {
    if (!done_) throw TemplateError("no JSON");
    return *done_;
  }

 private:
  struct Open {
    bool is_object = false;
    Dict dict = {};
    Values items = {};
    Value key = {};
  };

  bool add(Value value) {
    if (open_.empty()) {
      done_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  std::optional<Value> done_;
};

}  // namespace

Value from_json(std::string_view text) {
  Builder builder;
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.done();
}

}  // namespace stretto::jinja
