// The body of a request, and the fields that completions and chat have alike, read and checked;
// completion_request.cc and chat_request.cc have the rest.
#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/server/api_error.h"
#include "stretto/server/request_fields.h"

namespace stretto {

// The body of a request. ApiError where it is no JSON object.
inline Json request_object(std::string_view body) {
  try {
    Json json = parse_json(body, "request");
    if (!json.is_object()) throw UserError("request: need a JSON object");
    return json;
  } catch (const UserError& e) {
    throw ApiError(400, e.what());
  }
}

class RequestReader {
 public:
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;

  // `json` and `limits` must outlive it. UserError where it is no object.
  RequestReader(const Json& json, int vocab_size, const CompletionLimits& limits)
      : fields_(json, ""), vocab_size_(vocab_size), limits_(limits) {}

  const JsonFields& fields() const { return fields_; }
  int vocab_size() const { return vocab_size_; }
  const CompletionLimits& limits() const { return limits_; }

  [[noreturn]] void fail(const char* field, const std::string& what) const {
    throw ApiError(400, fmt::format("{}: {}", field, what), field);
  }
  // UserErrors of the reader become the field's.
  template <typename Read>
  auto checked(const char* field, Read read) const {
    try {
      return read();
    } catch (const UserError& e) {
      throw ApiError(400, e.what(), field);
    }
  }
  std::int64_t integer(const char* field, std::int64_t absent, std::int64_t min,
                       std::int64_t max) const {
    return checked(field, [&] { return fields_.optional_integer(field, min, max); })
        .value_or(absent);
  }
  double number(const char* field, double absent, double min, double max) const {
    return checked(field, [&] { return fields_.optional_number(field, min, max); })
        .value_or(absent);
  }
  bool boolean(const char* field, bool absent) const {
    return checked(field, [&] { return fields_.optional_boolean(field); }).value_or(absent);
  }
  std::string text(const char* field, const std::string& absent) const {
    return checked(field, [&] { return fields_.optional_text(field); }).value_or(absent);
  }
  std::vector<int> token_ids(const char* field) const {
    std::vector<int> out;
    auto ids = checked(field, [&] { return fields_.integers(field, 0, vocab_size_ - 1); });
    for (std::int64_t id : ids) out.push_back(static_cast<int>(id));
    return out;
  }

  template <std::size_t kSize>
  void refuse(const std::array<const char*, kSize>& refused) const {
    for (const char* field : refused) {
      const Json* value = fields_.find(field);
      if (value == nullptr || (value->is_boolean() && !value->get<bool>())) continue;
      if (value->is_object() && value->value("type", Json()) == "text") continue;
      if (value->is_array() && value->empty()) continue;  // clients send it for nothing
      if (field == std::string_view("suffix") && *value == "") continue;
      fail(field, "is not supported here, and ignoring it would change what is answered");
    }
  }

  void read_sampling(CompletionRequest& out, const SamplingDefaults& defaults) const {
    SamplingParams& s = out.sampling;
    s.temperature = number("temperature", defaults.temperature.value_or(1.0), 0, 1000);
    s.top_p = number("top_p", defaults.top_p.value_or(1.0), 0, 1);
    s.top_k = integer("top_k", defaults.top_k.value_or(0), -1, kMostTokens);
    if (s.top_k == -1) s.top_k = 0;
    s.min_p = number("min_p", defaults.min_p.value_or(0.0), 0, 1);
    s.repetition_penalty =
        number("repetition_penalty", defaults.repetition_penalty.value_or(1.0), 1e-3, 1e3);
    s.presence_penalty = number("presence_penalty", 0, -2, 2);
    s.frequency_penalty = number("frequency_penalty", 0, -2, 2);
    s.min_tokens = out.min_tokens;
    s.allowed_tokens = token_ids("allowed_token_ids");
    if (fields_.find("allowed_token_ids") != nullptr && s.allowed_tokens.empty()) {
      fail("allowed_token_ids", "is an empty list");
    }
    read_bias(s);
    read_seed(out);
    checked("temperature", [&] {
      s.validate();
      return 0;
    });
  }

  void read_seed(CompletionRequest& out) const {
    const Json* seed = fields_.find("seed");
    if (seed == nullptr) return;
    if (!seed->is_number_integer()) {  // what has more than 64 bits is read as a fraction
      fail("seed", fmt::format("need a whole number from {} to {}, got {}",
                               std::numeric_limits<std::int64_t>::min(),
                               std::numeric_limits<std::uint64_t>::max(), quote_json(*seed)));
    }
    out.has_seed = true;
    out.sampling.seed = seed->is_number_unsigned()
                            ? seed->get<std::uint64_t>()
                            : static_cast<std::uint64_t>(seed->get<std::int64_t>());
  }

  void read_bias(SamplingParams& s) const {
    const Json* bias = fields_.find("logit_bias");
    if (bias == nullptr) return;
    if (!bias->is_object()) fail("logit_bias", "need an object of token ids and numbers");
    for (const auto& [key, value] : bias->items()) {
      int id = -1;
      auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size_) {
        fail("logit_bias",
             fmt::format("need token ids from 0 to {}, got {}", vocab_size_ - 1, quote_json(key)));
      }
      if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
        fail("logit_bias", "need numbers from -100 to 100, got " + quote_json(value));
      }
      s.logit_bias.emplace_back(id, value.get<float>());
    }
  }

  void read_stops(CompletionRequest& out) const {
    if (const Json* stop = fields_.find("stop"); stop != nullptr && stop->is_string()) {
      out.stop = {stop->get<std::string>()};
    } else {
      out.stop = checked("stop", [&] {
                   return fields_.optional_texts("stop", limits_.max_stops);
                 }).value_or(std::vector<std::string>());
    }
    for (const std::string& text : out.stop) {
      if (text.empty()) fail("stop", "has an empty text");
      if (text.size() > limits_.max_stop_bytes) {
        fail("stop", fmt::format("{} bytes, at most {}", text.size(), limits_.max_stop_bytes));
      }
    }
    out.stop_token_ids = token_ids("stop_token_ids");
    out.include_stop_str_in_output = boolean("include_stop_str_in_output", false);
    out.ignore_eos = boolean("ignore_eos", false);
  }

  std::optional<int> alternatives(const char* field) const {
    auto count =
        checked(field, [&] { return fields_.optional_integer(field, 0, limits_.max_logprobs); });
    if (!count) return std::nullopt;
    return static_cast<int>(*count);
  }

  // timeout_s.
  std::optional<double> seconds_allowed() const {
    constexpr double kMostSeconds = 1e6;
    return checked("timeout_s",
                   [&] { return fields_.optional_number("timeout_s", 0, kMostSeconds); });
  }

  void read_scheduling(CompletionRequest& out) const {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    out.priority = static_cast<int>(integer("priority", 0, -kMost, kMost));
    out.cache_salt = text("cache_salt", "");
    if (fields_.has("cache_salt") && out.cache_salt.empty()) fail("cache_salt", "is empty");
    if (out.cache_salt.size() > limits_.max_salt_bytes) {
      fail("cache_salt",
           fmt::format("{} bytes, at most {}", out.cache_salt.size(), limits_.max_salt_bytes));
    }
    out.timeout_s = seconds_allowed();
  }

  // What chat and completions have alike.
  void read_output(CompletionRequest& out) const {
    out.skip_special_tokens = boolean("skip_special_tokens", true);
    out.split_special_tokens = boolean("split_special_tokens", false);
    out.return_token_ids = boolean("return_token_ids", false);
    out.return_tokens_as_token_ids = boolean("return_tokens_as_token_ids", false);
    out.prompt_logprobs = alternatives("prompt_logprobs");
    out.stream = boolean("stream", false);
    if (out.stream && out.prompt_logprobs) {
      fail("prompt_logprobs", "does not go with stream");
    }
    if (fields_.has("truncate_prompt_tokens")) {
      out.truncate_prompt_tokens = integer("truncate_prompt_tokens", 0, -1, kMostTokens);
      if (out.truncate_prompt_tokens == 0) fail("truncate_prompt_tokens", "need -1, 1 or more");
    }
    read_scheduling(out);
    const Json* options = fields_.find("stream_options");
    if (options == nullptr) return;
    if (!out.stream) fail("stream_options", "needs stream");
    checked("stream_options", [&] {
      JsonFields reader(*options, "stream_options");
      out.include_usage = reader.optional_boolean("include_usage").value_or(false);
      out.continuous_usage_stats =
          reader.optional_boolean("continuous_usage_stats").value_or(false);
      return 0;
    });
  }

 private:
  JsonFields fields_;
  int vocab_size_;
  const CompletionLimits& limits_;
};

}  // namespace stretto
