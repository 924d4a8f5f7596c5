#include "stretto/engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace stretto {

TextStream::TextStream(Tokenizer tokenizer, TextStreamOptions options)
    : options_(std::move(options)),
      decoder_(std::move(tokenizer), options_.skip_special_tokens),
      stops_(options_.stop) {}

std::string TextStream::push(int token) {
  ++num_tokens_;
  std::string text;
  if (std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end()) {
    end_ = End::kToken;
    end_token_ = token;
  } else {
    std::string piece = decoder_.push(token);
    text = num_tokens_ < options_.min_tokens ? piece : stops_.push(piece);
    if (!stops_.stopped() && num_tokens_ == options_.max_tokens) end_ = End::kLength;
  }
  if (end_ != End::kNone) text += stops_.push(decoder_.finish());
  if (stops_.stopped()) {
    end_ = End::kStop;
    end_text_ = stops_.stop();
    if (options_.keeps_stop) text += end_text_;
  } else if (end_ != End::kNone) {
    text += stops_.finish();
  }
  return text;
}

std::string TextStream::finish() {
  std::string text = stops_.push(decoder_.finish());
  return stops_.stopped() ? text : text + stops_.finish();
}

}  // namespace stretto
