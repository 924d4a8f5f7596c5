#include "stretto/model/tokenizer/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr int kMerged = -1;
constexpr int kNone = -1;

// A merge that may be applied at symbol `position`, unless its pair has changed meanwhile.
struct Candidate {
  std::uint32_t rank;
  int position;
  int merged;

  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};
using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

struct TokenPair {
  std::string_view left;
  std::string_view right;
};

// One entry of `merges`: ["a", "b"], or "a b" in files of older date.
TokenPair parse_pair(const Json& entry, const auto& fail) {
  if (entry.is_array()) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string())
      fail("need two strings");
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  if (!entry.is_string()) fail("need two strings");
  const std::string_view text = entry.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    fail("need two tokens with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

bool is_version_line(const Json& entry) {
  return entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version");
}

}  // namespace

struct BpeModel::Symbols {
  std::vector<Symbol> list;
  // An unknown character whose symbol is still to come. The reference puts it behind byte symbols
  // that follow, and so does this.
  bool pending_unknown = false;

  void add(int id) {
    const int at = static_cast<int>(list.size());
    if (at > 0) list.back().next = at;
    list.push_back({.id = id, .previous = at - 1, .next = kNone});
  }
  Symbol& operator[](int at) { return list[static_cast<std::size_t>(at)]; }
};

BpeModel::BpeModel(const JsonNode& model)
    : where_(model.path()),
      vocabulary_(model.at("vocab")),
      merges_(model.at("merges").json().size()) {
  read_options(model);
  read_merges(model.at("merges"));
}

void BpeModel::read_options(const JsonNode& model) {
  if (const auto dropout = model.find("dropout")) {
    if (!dropout->json().is_number() || dropout->json().get<double>() != 0) {
      dropout->fail("dropout is for training, need null");
    }
  }
  if (const auto unk = model.find("unk_token")) unk_token_ = unk->text();
  continuing_prefix_ = model.text_or("continuing_subword_prefix", "");
  end_suffix_ = model.text_or("end_of_word_suffix", "");
  fuse_unk_ = model.flag_or("fuse_unk", false);
  ignore_merges_ = model.flag_or("ignore_merges", false);
  if (model.flag_or("byte_fallback", false)) read_bytes();
}

void BpeModel::read_bytes() {
  byte_ids_.emplace();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    (*byte_ids_)[byte] = vocabulary_.id(fmt::format("<0x{:02X}>", byte)).value_or(kNone);
  }
}

void BpeModel::read_merges(const JsonNode& merges) {
  const Json& json = merges.json();
  if (!json.is_array()) merges.fail("need an array");
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (is_version_line(json[i])) continue;
    const auto fail = [&](std::string_view reason) {
      JsonNode(json[i], fmt::format("{}[{}]", merges.path(), i)).fail(reason);
    };
    const auto id_of = [&](std::string_view token) {
      const auto id = vocabulary_.id(token);
      if (!id) fail(fmt::format("token '{}' is not in the vocabulary", printable(token)));
      return *id;
    };
    const TokenPair pair = parse_pair(json[i], fail);
    const int left = id_of(pair.left);
    const int right = id_of(pair.right);
    if (pair.right.size() < continuing_prefix_.size()) {
      fail("the second token lacks the subword prefix");
    }
    const std::string_view tail = pair.right.substr(continuing_prefix_.size());
    const int merged = id_of(std::string(pair.left) + std::string(tail));
    merges_.insert(left, right, {.rank = rank++, .merged = merged});
  }
}

int BpeModel::unknown_id() const {
  const auto id = vocabulary_.id(*unk_token_);
  if (!id)
    throw UserError(
        fmt::format("{}.unk_token: '{}' is not in the vocabulary", where_, printable(*unk_token_)));
  return *id;
}

std::string BpeModel::decorated(std::string_view character, bool first, bool last) const {
  std::string token(character);
  if (!first) token.insert(0, continuing_prefix_);
  if (last) token += end_suffix_;
  return token;
}

void BpeModel::add_unknown(std::string_view character, Symbols& symbols) const {
  const auto has_id = [this](char byte) {
    return (*byte_ids_)[static_cast<unsigned char>(byte)] != kNone;
  };
  if (byte_ids_ && std::all_of(character.begin(), character.end(), has_id)) {
    for (const char byte : character) symbols.add((*byte_ids_)[static_cast<unsigned char>(byte)]);
    return;
  }
  if (!unk_token_) return;  // as in the reference: a character that nothing stands for is left out
  if (!fuse_unk_) flush_unknown(symbols);
  unknown_id();  // throws when there is none
  symbols.pending_unknown = true;
}

void BpeModel::flush_unknown(Symbols& symbols) const {
  if (symbols.pending_unknown) symbols.add(unknown_id());
  symbols.pending_unknown = false;
}

BpeModel::Symbols BpeModel::split(std::string_view piece) const {
  const bool plain = continuing_prefix_.empty() && end_suffix_.empty();
  Symbols symbols;
  symbols.list.reserve(piece.size());
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = utf8_length(piece[at]);
    std::string_view token = piece.substr(at, length);
    std::string storage;
    if (!plain) {
      storage = decorated(token, at == 0, at + length == piece.size());
      token = storage;
    }
    if (const auto id = vocabulary_.id(token)) {
      flush_unknown(symbols);
      symbols.add(*id);
    } else {
      add_unknown(token, symbols);
    }
    at += length;
  }
  flush_unknown(symbols);
  return symbols;
}

void BpeModel::merge(Symbols& symbols) const {
  Queue queue;
  const auto propose = [&](int left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const Merge* merge = merges_.find(symbols[left].id, symbols[symbols[left].next].id);
    if (merge) queue.push({merge->rank, left, merge->merged});
  };
  for (int at = 0; at < static_cast<int>(symbols.list.size()); ++at) propose(at);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.id == kMerged || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = merges_.find(left.id, right.id);
    if (!merge || merge->merged != best.merged)
      continue;  // the pair has changed since it was proposed
    left.id = best.merged;
    left.next = right.next;
    right.id = kMerged;
    if (left.next != kNone) symbols[left.next].previous = best.position;
    propose(left.previous);
    propose(best.position);
  }
}

void BpeModel::tokenize(std::string_view piece, std::vector<int>& ids) const {
  if (ignore_merges_) {
    if (const auto id = vocabulary_.id(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  if (cache_.find(piece, ids)) return;
  const std::size_t before = ids.size();
  Symbols symbols = split(piece);
  merge(symbols);
  for (const Symbol& symbol : symbols.list) {
    if (symbol.id != kMerged) ids.push_back(symbol.id);
  }
  cache_.insert(piece, ids.data() + before, ids.size() - before);
}

}  // namespace stretto::tokenization
