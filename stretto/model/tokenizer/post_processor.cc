#include "stretto/model/tokenizer/post_processor.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto::tokenization {
namespace {

int parse_sequence(const JsonNode& field) {
  const std::string name = field.at("id").text();
  if (name != "A" && name != "B") field.at("id").fail("need 'A' or 'B'");
  return name == "A" ? 0 : 1;
}

// The id of ["[CLS]", 101].
std::vector<int> pair_id(const JsonNode& field, const std::function<bool(int)>& token_exists) {
  const auto items = field.items();
  if (items.size() != 2) field.fail("need a token and its id");
  if (!token_exists(items[1].token_id())) items[1].fail("no token has this id");
  return {items[1].token_id()};
}

}  // namespace

PostProcessor::PostProcessor(const std::optional<JsonNode>& field,
                             const TokenExists& token_exists) {
  if (field) parse(*field, token_exists);
}

void PostProcessor::parse(const JsonNode& field, const TokenExists& token_exists) {
  const std::string type = field.type();
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const JsonNode& item : field.at("processors").items()) parse(item, token_exists);
    return;
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const std::vector<int> cls = pair_id(field.at("cls"), token_exists);
    const std::vector<int> sep = pair_id(field.at("sep"), token_exists);
    Template single = {{-1, cls}, {0, {}}, {-1, sep}};
    Template pair = single;
    if (type == "RobertaProcessing") pair.push_back({-1, sep});
    pair.push_back({1, {}});
    pair.push_back({-1, sep});
    steps_.push_back({std::move(single), std::move(pair)});
    return;
  }
  if (type != "TemplateProcessing") {
    field.at("type").fail(fmt::format("post-processor '{}' is not supported", printable(type)));
  }
  const JsonNode special = field.at("special_tokens");
  Step step{parse_template(field.at("single"), special, token_exists),
            parse_template(field.at("pair"), special, token_exists)};
  for (const Piece& piece : step.single) {
    if (piece.sequence == 1) field.at("single").fail("uses sequence 'B', but there is only one");
  }
  steps_.push_back(std::move(step));
}

PostProcessor::Template PostProcessor::parse_template(const JsonNode& pieces,
                                                      const JsonNode& special,
                                                      const TokenExists& token_exists) {
  Template out;
  for (const JsonNode& field : pieces.items()) {
    Piece piece;
    if (const auto sequence = field.find("Sequence")) {
      piece.sequence = parse_sequence(*sequence);
    } else {
      const JsonNode token = special.at(field.at("SpecialToken").at("id").text());
      for (const JsonNode& id : token.at("ids").items()) {
        if (!token_exists(id.token_id())) id.fail("no token has this id");
        piece.special_ids.push_back(id.token_id());
      }
    }
    out.push_back(std::move(piece));
  }
  return out;
}

std::vector<int> PostProcessor::apply(std::vector<int> ids, bool add_special_tokens) const {
  std::vector<std::vector<int>> sequences{std::move(ids)};
  for (const Step& step : steps_) {
    if (sequences.empty() || sequences.size() > 2) {
      throw UserError(fmt::format(
          "post_processor: a template follows one that leaves {} sequences, need 1 or 2",
          sequences.size()));
    }
    std::vector<std::vector<int>> out;
    for (const Piece& piece : sequences.size() == 1 ? step.single : step.pair) {
      if (piece.sequence >= 0) {
        out.push_back(sequences[static_cast<std::size_t>(piece.sequence)]);
      } else if (add_special_tokens) {
        out.push_back(piece.special_ids);
      }
    }
    sequences = std::move(out);
  }
  if (sequences.size() == 1) return std::move(sequences.front());
  std::vector<int> all;
  for (const auto& sequence : sequences) all.insert(all.end(), sequence.begin(), sequence.end());
  return all;
}

}  // namespace stretto::tokenization
