// What a request asks of the model, every field checked: of completions, and of chat once its
// prompt is rendered. request_reader.h fills it in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "stretto/engine/sampling.h"
#include "stretto/server/grammar/front.h"

namespace stretto {

// What the answer has to look like.
struct OutputFormat {
  std::string field;  // that asked for it
  grammar::Asked asked;
};

struct CompletionRequest {
  using Prompt = std::variant<std::string, std::vector<int>>;  // text, or token ids

  std::string model;  // "": whatever is served
  std::vector<Prompt> prompts;
  std::int64_t max_tokens = 16;  // 0: of an echo alone
  std::int64_t min_tokens = 0;
  int n = 1;
  SamplingParams sampling;  // without the seed where has_seed is false
  bool has_seed = false;
  std::vector<std::string> stop;
  std::vector<int> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool add_special_tokens = true;
  bool split_special_tokens = false;  // tokenizer.h: EncodeOptions
  bool echo = false;
  std::optional<int> logprobs;         // alternatives beside each token
  std::optional<int> prompt_logprobs;  // the same of the prompt's tokens, vLLM's form
  bool stream = false;
  bool include_usage = false, continuous_usage_stats = false;
  bool return_token_ids = false, return_tokens_as_token_ids = false;
  std::optional<OutputFormat> format;
  int priority = 0;        // lower ones come in first, as in vLLM
  std::string cache_salt;  // only requests with the same one find each other's prefixes
  std::optional<double> timeout_s;
  std::optional<std::int64_t> truncate_prompt_tokens;  // keep the last ones; -1: as many as fit
};

struct CompletionLimits {
  std::size_t max_prompts = 1024;
  int max_n = 128;
  int max_logprobs = 20;
  std::size_t max_stops = 4, max_stop_bytes = 1024;
  std::size_t max_salt_bytes = 1024;
};

}  // namespace stretto
