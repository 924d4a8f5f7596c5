#include "stretto/server/output_grammars.h"

#include <fmt/format.h>

#include "stretto/server/api_error.h"
#include "stretto/server/grammar/tokenizer_vocabulary.h"

namespace stretto {

std::shared_ptr<const grammar::Vocabulary> OutputGrammars::vocabulary() {
  std::lock_guard lock(mutex_);
  if (!vocabulary_) vocabulary_ = grammar::vocabulary_of(tokenizer_, vocab_size_);
  return vocabulary_;
}

std::shared_ptr<const grammar::Grammar> OutputGrammars::known(const OutputFormat& format) {
  return cache_.known(format.asked.key());
}

std::shared_ptr<const grammar::Grammar> OutputGrammars::of(const OutputFormat& format) {
  try {
    const auto its = vocabulary();
    return cache_.of(format.asked.key(), *its, [&](grammar::Budget& budget) {
      return grammar::rules_of(format.asked, *its, budget);
    });
  } catch (const grammar::GrammarsFull& e) {
    throw ApiError(429, e.what());
  } catch (const UserError& e) {
    throw ApiError(400, fmt::format("{}: {}", format.field, e.what()), format.field);
  }
}

}  // namespace stretto
