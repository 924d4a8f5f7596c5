#include "stretto/model/tokenizer/word_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

int unknown_id(const Vocabulary& vocabulary, const std::string& unk_token,
               const std::string& where) {
  if (const auto id = vocabulary.id(unk_token)) return *id;
  throw UserError(
      fmt::format("{}.unk_token: '{}' is not in the vocabulary", where, printable(unk_token)));
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

WordPieceModel::WordPieceModel(const JsonNode& model)
    : where_(model.path()),
      vocabulary_(model.at("vocab")),
      unk_token_(model.text_or("unk_token", "[UNK]")),
      prefix_(model.text_or("continuing_subword_prefix", "##")),
      max_characters_(100) {
  if (const auto most = model.find("max_input_chars_per_word")) {
    max_characters_ = static_cast<std::size_t>(most->count());
  }
}

void WordPieceModel::tokenize(std::string_view piece, std::vector<int>& ids) const {
  const std::size_t before = ids.size();
  const auto unknown = [&] {
    ids.resize(before);
    ids.push_back(unknown_id(vocabulary_, unk_token_, where_));
  };
  if (num_characters(piece) > max_characters_) return unknown();
  for (std::size_t begin = 0; begin < piece.size();) {
    std::size_t end = piece.size();
    for (; end > begin; --end) {
      const bool cuts =
          end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80;
      if (cuts) continue;
      const std::string_view part = piece.substr(begin, end - begin);
      const auto id = vocabulary_.id(begin > 0 ? prefix_ + std::string(part) : std::string(part));
      if (!id) continue;
      ids.push_back(*id);
      break;
    }
    if (end == begin) return unknown();
    begin = end;
  }
}

WordLevelModel::WordLevelModel(const JsonNode& model)
    : where_(model.path()),
      vocabulary_(model.at("vocab")),
      unk_token_(model.text_or("unk_token", "<unk>")) {}

void WordLevelModel::tokenize(std::string_view piece, std::vector<int>& ids) const {
  const auto id = vocabulary_.id(piece);
  ids.push_back(id ? *id : unknown_id(vocabulary_, unk_token_, where_));
}

}  // namespace stretto::tokenization
