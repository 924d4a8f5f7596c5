// A server's grammars: the vocabulary that they mask, made when the first one is asked for, and
// those that were asked for lately. After output_format.h, before the engine.
#pragma once

#include <memory>
#include <mutex>

#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/server/grammar/constraint.h"
#include "stretto/server/request_fields.h"

namespace stretto {

class OutputGrammars {
 public:
  // `tokenizer` outlives it.
  OutputGrammars(const Tokenizer& tokenizer, int vocab_size)
      : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  // At once; null where it is new.
  std::shared_ptr<const grammar::Grammar> known(const OutputFormat& format);
  // Takes up to seconds where the grammar is new: for text workers. ApiError 400 naming the field.
  std::shared_ptr<const grammar::Grammar> of(const OutputFormat& format);

 private:
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

  const Tokenizer& tokenizer_;
  int vocab_size_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  grammar::GrammarCache cache_;
};

}  // namespace stretto
