#include "stretto/engine/answer.h"

#include <utility>

namespace stretto {
namespace {

const char* reason(TextStream::End end) {
  switch (end) {
    case TextStream::End::kToken:
      return "eos";
    case TextStream::End::kStop:
      return "stop";
    case TextStream::End::kLength:
      return "length";
    case TextStream::End::kNone:
      break;
  }
  return "";
}

}  // namespace

double GenerateResult::tokens_per_second() const {
  double steps = static_cast<double>(token_ids.size());
  return decode_seconds > 0 ? steps / decode_seconds : 0;
}

Answer::Answer(const ModelFiles& files, const GenerateRequest& request, OnText on_text)
    : text_(files.tokenizer,
            {.stop = request.stop,
             .ends = request.ignore_eos ? std::vector<int>() : files.generation.eos_token_ids,
             .max_tokens = request.max_tokens}),
      on_text_(std::move(on_text)),
      begin_(Clock::now()) {}

void Answer::prompt_done() {
  Clock::time_point now = Clock::now();
  result_.prefill_seconds = std::chrono::duration<double>(now - begin_).count();
  begin_ = now;
}

bool Answer::push(int token) {
  result_.token_ids.push_back(token);
  std::string piece = text_.push(token);
  if (on_text_ && !piece.empty()) on_text_(piece);
  result_.text += piece;
  result_.finish_reason = reason(text_.end());
  return text_.end() == TextStream::End::kNone;
}

GenerateResult Answer::finish() {
  result_.decode_seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  return std::move(result_);
}

}  // namespace stretto
