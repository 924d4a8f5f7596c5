// Tokens to text while they come: the streaming detokenizer, stop strings, and what ends a text.
// Follows batch_loop.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/engine/stop_matcher.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {

struct TextStreamOptions {
  std::vector<std::string> stop;  // the text ends before the first of them ...
  bool keeps_stop = false;        // ... or behind it
  std::vector<int> ends;          // tokens that end the text; their own text is left out
  std::int64_t max_tokens = 0;    // the text ends after so many tokens
  std::int64_t min_tokens = 0;    // stop strings count from there on
  bool skip_special_tokens = true;
};

class TextStream {
 public:
  enum class End : std::uint8_t { kNone, kToken, kStop, kLength };

  // UserError for an empty stop string.
  TextStream(Tokenizer tokenizer, TextStreamOptions options);

  // The text that is now certain. Not after an end.
  std::string push(int token);
  // Ends the text early: what was held back.
  std::string finish();

  End end() const { return end_; }
  int end_token() const { return end_token_; }               // where a token ended it
  const std::string& end_text() const { return end_text_; }  // where a stop string did
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  TextStreamOptions options_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  End end_ = End::kNone;
  int end_token_ = -1;
  std::string end_text_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace stretto
