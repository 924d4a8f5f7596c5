#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/commands.h"
#include "apps/model_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace stretto {
namespace {

struct TokenizeOptions {
  std::string model;
  bool decode = false, json = false, split_special_tokens = false;
};

[[noreturn]] void bad_ids(const std::string& found) {
  throw UserError(fmt::format(
      "standard input: '{}': need token ids, whole numbers separated by blanks, as a JSON array, "
      "or as a JSON object with token_ids",
      printable(found)));
}

std::vector<int> ids_of_json(const Json& parsed) {
  const Json& list =
      parsed.is_object() && parsed.contains("token_ids") ? parsed["token_ids"] : parsed;
  if (!list.is_array()) bad_ids(list.dump());
  std::vector<int> ids;
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT_MAX) bad_ids(id.dump());
    ids.push_back(id.get<int>());
  }
  return ids;
}

std::vector<int> parse_ids(const std::string& text) {
  std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '[' || text[first] == '{')) {
    return ids_of_json(parse_json(text, "standard input"));
  }
  std::vector<int> ids;
  std::istringstream in(text);
  std::string word;
  while (in >> word) {
    int id = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0) bad_ids(word);
    ids.push_back(id);
  }
  return ids;
}

std::string standard_input() {
  std::string out;
  char part[1 << 16];
  for (std::size_t read = 0; (read = std::fread(part, 1, sizeof part, stdin)) > 0;) {
    out.append(part, read);
  }
  if (std::ferror(stdin) == 0) return out;
  throw UserError(fmt::format("standard input: cannot be read: {}", std::strerror(errno)));
}

void tokenize(const TokenizeOptions& options) {
  Tokenizer tokenizer = Tokenizer::load(options.model);
  print_warnings(tokenizer.warnings());
  const std::string input = standard_input();
  nlohmann::json out;
  if (options.decode) {
    out["text"] = tokenizer.decode(parse_ids(input));
    if (!options.json) {
      fmt::print("{}", out["text"].get<std::string>());
      return;
    }
  } else {
    out["token_ids"] =
        tokenizer.encode(input, {.split_special_tokens = options.split_special_tokens});
    if (!options.json) {
      fmt::print("{}\n", fmt::join(out["token_ids"].get<std::vector<int>>(), " "));
      return;
    }
  }
  fmt::print("{}\n", to_line(out));
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
  command->add_flag("--split-special-tokens", options->split_special_tokens,
                    "special tokens that the text spells out are ordinary text");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { tokenize(*options); });
}

}  // namespace stretto
