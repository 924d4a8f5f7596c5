#include "stretto/server/grammar/tokenizer_vocabulary.h"

#include <string>
#include <utility>
#include <vector>

namespace stretto::grammar {

std::shared_ptr<const Vocabulary> vocabulary_of(const Tokenizer& tokenizer, int size) {
  std::vector<std::string> tokens = tokenizer.token_bytes();
  for (int id = 0; id < static_cast<int>(tokens.size()); ++id) {
    std::string& bytes = tokens[static_cast<std::size_t>(id)];
    if (tokenizer.is_special(id)) {
      bytes = special_text(bytes);
    } else if (bytes.find(kSpecialMark) != bytes.npos) {
      bytes.clear();  // of no text, and nobody may spell a special token with it
    }
  }
  return std::make_shared<const Vocabulary>(std::move(tokens), size,
                                            tokenizer.strips_first_space());
}

}  // namespace stretto::grammar
