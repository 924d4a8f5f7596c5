#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {
namespace {

struct TokenizeOptions {
  std::string model;
  bool decode = false, json = false;
};

// Ids as a JSON array, an object with token_ids, or numbers separated by blanks.
std::vector<int> parse_ids(const std::string& text) {
  std::size_t first = text.find_first_not_of(" \t\r\n");
  try {
    if (first != std::string::npos && (text[first] == '[' || text[first] == '{')) {
      Json parsed = parse_json(text, "standard input");
      return (parsed.is_object() ? parsed.at("token_ids") : parsed).get<std::vector<int>>();
    }
    std::vector<int> ids;
    std::istringstream in(text);
    std::string word;
    while (in >> word) {
      std::size_t used = 0;
      ids.push_back(std::stoi(word, &used));
      if (used != word.size()) throw std::invalid_argument(word);
    }
    return ids;
  } catch (const Json::exception&) {
    throw UserError("standard input: need token ids as a JSON array or an object with token_ids");
  } catch (const std::logic_error&) {
    throw UserError("standard input: need token ids, whole numbers separated by blanks");
  }
}

void tokenize(const TokenizeOptions& options) {
  Tokenizer tokenizer = Tokenizer::load(options.model);
  std::string input{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  nlohmann::json out;
  if (options.decode) {
    out["text"] = tokenizer.decode(parse_ids(input));
    if (!options.json) {
      fmt::print("{}", out["text"].get<std::string>());
      return;
    }
  } else {
    out["token_ids"] = tokenizer.encode(input);
    if (!options.json) {
      fmt::print("{}\n", fmt::join(out["token_ids"].get<std::vector<int>>(), " "));
      return;
    }
  }
  fmt::print("{}\n", out.dump());
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Standard input to token ids, or back with --decode");
  command->add_option("--model", options->model, "directory with tokenizer.json")
      ->required()
      ->envname("STRETTO_MODEL");
  command->add_flag("--decode", options->decode, "token ids to text");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { tokenize(*options); });
}

}  // namespace stretto
