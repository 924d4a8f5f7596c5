#include "stretto/server/completion_request.h"

#include <fmt/format.h>

#include <array>

#include "stretto/server/output_format.h"

namespace stretto {
namespace {

// What constrains the output, or asks for another answer: ignoring it would answer something else.
constexpr std::array kRefusedFields = {
    "suffix",
    "guided_whitespace_pattern",
    "structural_tag",
    "regex",
    "ebnf",
    "bad_words",
    "use_beam_search",
    "prompt_embeds",
    "logits_processors",
    "thinking_token_budget",
};

class CompletionReader : public RequestReader {
 public:
  CompletionReader(const Json& json, std::string_view body, int vocab_size,
                   const CompletionLimits& limits)
      : RequestReader(json, vocab_size, limits), json_(json), body_(body) {}

  CompletionRequest read(const SamplingDefaults& defaults) {
    refuse(kRefusedFields);
    CompletionRequest out;
    out.model = text("model", "");
    read_prompts(out);
    out.echo = boolean("echo", false);
    out.max_tokens = integer("max_tokens", 16, out.echo ? 0 : 1, kMostTokens);
    out.min_tokens = integer("min_tokens", 0, 0, kMostTokens);
    if (out.min_tokens > out.max_tokens) {
      fail("min_tokens", fmt::format("is {}, max_tokens is {}", out.min_tokens, out.max_tokens));
    }
    out.n = static_cast<int>(integer("n", 1, 1, limits().max_n));
    if (integer("best_of", out.n, 1, limits().max_n) != out.n) {
      fail("best_of", "has to be as large as n: choices are not ranked");
    }
    read_sampling(out, defaults);
    read_stops(out);
    read_output(out);
    out.format = read_output_format(*this, json_, body_);
    out.add_special_tokens = boolean("add_special_tokens", true);
    const Json* logprobs = fields().find("logprobs");
    if (logprobs != nullptr && logprobs->is_boolean()) {
      if (logprobs->get<bool>()) out.logprobs = 0;
    } else {
      out.logprobs = alternatives("logprobs");
    }
    return out;
  }

 private:
  void read_prompts(CompletionRequest& out) const {
    const Json* prompt = fields().find("prompt");
    if (prompt == nullptr) fail("prompt", "is missing");
    if (prompt->is_string()) {
      out.prompts.emplace_back(prompt->get<std::string>());
    } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
      out.prompts.emplace_back(prompt_ids(*prompt));
    } else if (prompt->is_array()) {
      if (prompt->empty()) fail("prompt", "is an empty list");
      if (prompt->size() > limits().max_prompts) {
        fail("prompt", fmt::format("{} prompts, at most {}", prompt->size(), limits().max_prompts));
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
                      id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < vocab_size();
      if (!is_token) {
        fail("prompt",
             fmt::format("need token ids from 0 to {}, got {}", vocab_size() - 1, quote_json(id)));
      }
      out.push_back(static_cast<int>(id.get<std::int64_t>()));
    }
    return out;
  }

  const Json& json_;
  std::string_view body_;
};

}  // namespace

CompletionRequest parse_completion_request(std::string_view body, const SamplingDefaults& defaults,
                                           int vocab_size, const CompletionLimits& limits) {
  const Json json = request_object(body);
  return CompletionReader(json, body, vocab_size, limits).read(defaults);
}

}  // namespace stretto
