// A request for text, and what comes of it token by token: text, times, why it ended. Who makes the
// tokens (run_requests.h) calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/engine/model_files.h"
#include "stretto/engine/sampling.h"
#include "stretto/engine/text_stream.h"

namespace stretto {

struct GenerateRequest {
  std::vector<int> prompt;
  std::int64_t max_tokens = 128;
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

struct GenerateResult {
  std::vector<int> token_ids;  // the EOS that ended it included
  std::string text;            // cut before a stop string
  std::string finish_reason;   // "eos", "stop", "length"
  double prefill_seconds = 0;
  double decode_seconds = 0;

  double tokens_per_second() const;  // while decoding
};

// Called on rank 0 with each piece of text that is certain, of the requests that it serves.
using OnText = std::function<void(const std::string&)>;

class Answer {
 public:
  Answer(const ModelFiles& files, const GenerateRequest& request, OnText on_text);

  void begin() { begin_ = Clock::now(); }
  // Before the first token.
  void prompt_done();
  std::int64_t num_tokens() const { return std::ssize(result_.token_ids); }
  // False: it was the last one.
  bool push(int token);
  GenerateResult finish();

 private:
  using Clock = std::chrono::steady_clock;

  TextStream text_;
  OnText on_text_;
  Clock::time_point begin_;
  GenerateResult result_;
};

}  // namespace stretto
