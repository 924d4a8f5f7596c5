#include "stretto/model/tokenizer/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score, as in SentencePiece
constexpr std::size_t kNowhere = std::string_view::npos;

// The tokens of `vocab`, a list of [token, score]; their places are their ids.
std::vector<std::string> tokens_of(const JsonNode& vocab) {
  const Json& json = vocab.json();
  if (!json.is_array()) vocab.fail("need a list of [token, score]");
  std::vector<std::string> out;
  out.reserve(json.size());
  for (const Json& entry : json) {
    bool is_pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                   entry[1].is_number() && std::isfinite(entry[1].get<double>());
    if (!is_pair) {
      JsonNode(entry, fmt::format("{}[{}]", vocab.path(), out.size())).fail("need [token, score]");
    }
    out.push_back(entry[0].get<std::string>());
  }
  return out;
}

}  // namespace

UnigramModel::UnigramModel(const JsonNode& model)
    : where_(model.path()), vocabulary_(model.at("vocab"), tokens_of(model.at("vocab"))) {
  double lowest = 0;
  bool is_first = true;
  for (const Json& entry : model.at("vocab").json()) {
    scores_.push_back(entry[1].get<double>());
    lowest = is_first ? scores_.back() : std::min(lowest, scores_.back());
    is_first = false;
  }
  unknown_score_ = lowest - kUnknownPenalty;
  if (const auto unknown = model.find("unk_id")) {
    unknown_id_ = unknown->token_id();
    if (*unknown_id_ >= vocabulary_.id_limit()) unknown->fail("no token has this id");
  }
  for (int id = 0; id < vocabulary_.id_limit(); ++id) {
    // Of tokens that are spelled alike the last one counts.
    std::string_view token = *vocabulary_.token(id);
    if (!token.empty() && vocabulary_.id(token) == id) sorted_.emplace_back(token, id);
  }
  std::sort(sorted_.begin(), sorted_.end());
  if (!model.flag_or("byte_fallback", false)) return;
  byte_ids_.emplace();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    (*byte_ids_)[byte] = vocabulary_.id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

template <typename Visit>
void UnigramModel::for_each_prefix(std::string_view text, Visit visit) const {
  auto begin = sorted_.begin(), end = sorted_.end();  // tokens that start as the text does so far
  for (std::size_t depth = 0; depth < text.size() && begin != end; ++depth) {
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto byte_of = [depth](const auto& entry) {
      return entry.first.size() > depth ? static_cast<unsigned char>(entry.first[depth]) : -1;
    };
    begin = std::partition_point(begin, end, [&](const auto& e) { return byte_of(e) < byte; });
    end = std::partition_point(begin, end, [&](const auto& e) { return byte_of(e) <= byte; });
    if (begin != end && begin->first.size() == depth + 1) visit(depth + 1, begin->second);
  }
}

std::vector<UnigramModel::Part> UnigramModel::best_parts(std::string_view piece) const {
  struct Node {
    double score = 0;
    std::size_t begin = kNowhere;  // of the last token of the best way to here
    int id = -1;                   // unknown: -1
  };
  std::vector<Node> nodes(piece.size() + 1);
  for (std::size_t at = 0; at < piece.size();) {
    const double before = nodes[at].score;
    const auto propose = [&](std::size_t to, double score, int id) {
      Node& node = nodes[to];
      if (node.begin == kNowhere || before + score > node.score) node = {before + score, at, id};
    };
    const std::size_t length = utf8_length(piece[at]);
    bool has_character = false;
    for_each_prefix(piece.substr(at), [&](std::size_t size, int id) {
      propose(at + size, scores_[static_cast<std::size_t>(id)], id);
      has_character |= size == length;
    });
    if (!has_character) propose(at + length, unknown_score_, unknown_id_.value_or(-1));
    at += length;
  }
  std::vector<Part> parts;
  for (std::size_t end = piece.size(); end > 0; end = nodes[end].begin) {
    const Node& node = nodes[end];
    const bool is_unknown = node.id == unknown_id_.value_or(-1);
    if (is_unknown && !parts.empty() && parts.back().id == node.id) {
      parts.back().begin = node.begin;
    } else {
      parts.push_back({node.begin, end, node.id});
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

void UnigramModel::append_unknown(std::string_view part, std::vector<int>& ids) const {
  const auto id_of = [this](char byte) { return (*byte_ids_)[static_cast<unsigned char>(byte)]; };
  if (byte_ids_ &&
      std::all_of(part.begin(), part.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    for (const char byte : part) ids.push_back(id_of(byte));
    return;
  }
  if (!unknown_id_) {
    throw UserError(
        fmt::format("{}.unk_id: is missing, and the text has a character that no token "
                    "stands for",
                    where_));
  }
  ids.push_back(*unknown_id_);
}

void UnigramModel::tokenize(std::string_view piece, std::vector<int>& ids) const {
  for (const Part& part : best_parts(piece)) {
    const std::string_view text = piece.substr(part.begin, part.end - part.begin);
    // As in the reference: what was joined is looked up by its text again.
    if (const auto id = vocabulary_.id(text)) {
      ids.push_back(*id);
    } else {
      append_unknown(text, ids);
    }
  }
}

}  // namespace stretto::tokenization
