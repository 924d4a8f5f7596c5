// The vocabulary of grammars as a tokenizer has it.
#pragma once

#include <memory>

#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/server/grammar/vocabulary.h"

namespace stretto::grammar {

// `size`: of the model's logits. UserError where tokens have no bytes of their own.
std::shared_ptr<const Vocabulary> vocabulary_of(const Tokenizer& tokenizer, int size);

}  // namespace stretto::grammar
