#include "stretto/server/completion_request.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/server/api_error.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;

// What constrains the output, or asks for another answer: ignoring it would answer something else.
constexpr std::array kRefused = {
    "suffix",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "grammar",
    "json_schema",
    "bad_words",
    "use_beam_search",
    "prompt_embeds",
    "logits_processors",
    "thinking_token_budget",
};

class RequestReader {
 public:
  RequestReader(const Json& json, int vocab_size, const CompletionLimits& limits)
      : json_(json), fields_(json, "request"), vocab_size_(vocab_size), limits_(limits) {}

  CompletionRequest read(const SamplingDefaults& defaults) {
    refuse_unsupported();
    CompletionRequest out;
    out.model = text("model", "");
    read_prompts(out);
    out.max_tokens = integer("max_tokens", 16, 1, kMostTokens);
    out.min_tokens = integer("min_tokens", 0, 0, kMostTokens);
    if (out.min_tokens > out.max_tokens) {
      fail("min_tokens", fmt::format("is {}, max_tokens is {}", out.min_tokens, out.max_tokens));
    }
    out.n = static_cast<int>(integer("n", 1, 1, limits_.max_n));
    if (integer("best_of", out.n, 1, limits_.max_n) != out.n) {
      fail("best_of", "has to be as large as n: choices are not ranked");
    }
    read_sampling(out, defaults);
    read_stops(out);
    read_output(out);
    return out;
  }

 private:
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

  void refuse_unsupported() const {
    for (const char* field : kRefused) {
      const Json* value = fields_.find(field);
      if (value == nullptr || (value->is_boolean() && !value->get<bool>())) continue;
      if (value->is_object() && value->value("type", Json()) == "text") continue;
      fail(field, "is not supported here, and ignoring it would change what is answered");
    }
  }

  void read_prompts(CompletionRequest& out) const {
    const Json* prompt = fields_.find("prompt");
    if (prompt == nullptr) fail("prompt", "is missing");
    if (prompt->is_string()) {
      out.prompts.emplace_back(prompt->get<std::string>());
    } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
      out.prompts.emplace_back(prompt_ids(*prompt));
    } else if (prompt->is_array()) {
      if (prompt->empty()) fail("prompt", "is an empty list");
      if (prompt->size() > limits_.max_prompts) {
        fail("prompt", fmt::format("{} prompts, at most {}", prompt->size(), limits_.max_prompts));
      }
      for (const Json& one : *prompt) {
        if (one.is_string()) {
          out.prompts.emplace_back(one.get<std::string>());
        } else if (one.is_array()) {
          out.prompts.emplace_back(prompt_ids(one));
        } else {
          fail("prompt", "need texts or lists of token ids, got " + quote_json(one));
        }
      }
    } else {
      fail("prompt",
           "need a text, a list of token ids, or a list of these, got " + quote_json(*prompt));
    }
  }

  std::vector<int> prompt_ids(const Json& list) const {
    std::vector<int> out;
    out.reserve(list.size());
    for (const Json& id : list) {
      bool is_token = id.is_number_integer() &&
                      (!id.is_number_unsigned() || id.get<std::uint64_t>() < (1ull << 31)) &&
                      id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < vocab_size_;
      if (!is_token) {
        fail("prompt",
             fmt::format("need token ids from 0 to {}, got {}", vocab_size_ - 1, quote_json(id)));
      }
      out.push_back(static_cast<int>(id.get<std::int64_t>()));
    }
    return out;
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
    read_bias(s);
    if (const Json* seed = fields_.find("seed")) {
      bool is_wide = seed->is_number_unsigned();
      out.has_seed = true;
      s.seed = is_wide ? seed->get<std::uint64_t>()
                       : static_cast<std::uint64_t>(
                             integer("seed", 0, std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()));
    }
    checked("temperature", [&] {
      s.validate();
      return 0;
    });
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

  void read_output(CompletionRequest& out) const {
    out.echo = boolean("echo", false);
    out.skip_special_tokens = boolean("skip_special_tokens", true);
    out.add_special_tokens = boolean("add_special_tokens", true);
    out.split_special_tokens = boolean("split_special_tokens", false);
    out.return_token_ids = boolean("return_token_ids", false);
    out.return_tokens_as_token_ids = boolean("return_tokens_as_token_ids", false);
    const Json* logprobs = fields_.find("logprobs");
    if (logprobs != nullptr && logprobs->is_boolean()) {
      if (logprobs->get<bool>()) out.logprobs = 0;
    } else {
      out.logprobs = alternatives("logprobs");
    }
    out.prompt_logprobs = alternatives("prompt_logprobs");
    out.stream = boolean("stream", false);
    if (out.stream && out.prompt_logprobs) {
      fail("prompt_logprobs", "does not go with stream");
    }
    if (fields_.has("truncate_prompt_tokens")) {
      out.truncate_prompt_tokens = integer("truncate_prompt_tokens", 0, -1, kMostTokens);
      if (out.truncate_prompt_tokens == 0) fail("truncate_prompt_tokens", "need -1, 1 or more");
    }
    const Json* options = fields_.find("stream_options");
    if (options == nullptr) return;
    if (!out.stream) fail("stream_options", "needs stream");
    checked("stream_options", [&] {
      JsonFields reader(*options, "request: stream_options");
      out.include_usage = reader.optional_boolean("include_usage").value_or(false);
      out.continuous_usage_stats =
          reader.optional_boolean("continuous_usage_stats").value_or(false);
      return 0;
    });
  }

  const Json& json_;
  JsonFields fields_;
  int vocab_size_;
  const CompletionLimits& limits_;
};

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const SamplingDefaults& defaults,
                                           int vocab_size, const CompletionLimits& limits) {
  Json json;
  try {
    json = parse_json(body, "request");
    if (!json.is_object()) throw UserError("request: need a JSON object");
  } catch (const UserError& e) {
    throw ApiError(400, e.what());
  }
  return RequestReader(json, vocab_size, limits).read(defaults);
}

}  // namespace stretto
