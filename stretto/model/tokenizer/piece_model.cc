#include "stretto/model/tokenizer/piece_model.h"

#include <fmt/format.h>

#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/bpe_model.h"
#include "stretto/model/tokenizer/unigram_model.h"
#include "stretto/model/tokenizer/word_models.h"

namespace stretto::tokenization {
namespace {

std::string type_of(const JsonNode& model) {
  if (const auto type = model.find("type")) return type->text();
  if (!model.find("merges") && model.at("vocab").json().is_array()) return "Unigram";
  return "BPE";
}

}  // namespace

std::unique_ptr<const PieceModel> parse_piece_model(const JsonNode& model) {
  const std::string type = type_of(model);
  if (type == "BPE") return std::make_unique<BpeModel>(model);
  if (type == "Unigram") return std::make_unique<UnigramModel>(model);
  if (type == "WordPiece") return std::make_unique<WordPieceModel>(model);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(model);
  model.at("type").fail(
      fmt::format("model '{}' is not supported, need one of 'BPE', 'Unigram', "
                  "'WordPiece', 'WordLevel'",
                  printable(type)));
}

}  // namespace stretto::tokenization
