#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/model_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"
#include "stretto/engine/generate.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

struct ScoreOptions {
  ModelOptions model;
  std::string file;
  std::int64_t max_tokens_per_doc = 512;
  bool split_special_tokens = false;
  bool json = false;
};

std::vector<std::vector<int>> documents_of(const ScoreOptions& options, const ModelFiles& files) {
  if (files.generation.eos_token_ids.empty()) {
    throw UserError(
        fmt::format("{}: eos_token_id is missing, and documents end with it", files.config.where));
  }
  std::string text = read_file(options.file, kMaxFileBytes);
  if (text.empty()) throw UserError(fmt::format("{}: is empty", options.file));
  if (!text.empty() && text.back() == '\0') text.pop_back();
  std::vector<std::vector<int>> documents;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    std::size_t end = std::min(text.find('\0', begin), text.size());
    std::vector<int> ids =
        files.tokenizer.encode(std::string_view(text).substr(begin, end - begin),
                               {.split_special_tokens = options.split_special_tokens});
    ids.push_back(files.generation.eos_token_ids.front());
    if (static_cast<std::int64_t>(ids.size()) > options.max_tokens_per_doc) {
      ids.resize(static_cast<std::size_t>(options.max_tokens_per_doc));
    }
    documents.push_back(std::move(ids));
    begin = end + 1;
  }
  return documents;
}

void score(ScoreOptions& options) {
  choose_device(options.model);
  ModelFiles files = open_model(options.model);
  std::vector<std::vector<int>> documents = documents_of(options, files);
  activation_dtype(options.model.dtype, files.config);
  if (ran_as_processes(options.model)) return;
  Engine engine(files, engine_options(options.model, files));
  bool show = ::isatty(2) == 1;
  Engine::Score score = engine.score(documents, [&](std::size_t done) {
    if (show) say("\r{}/{} documents", done, documents.size());
  });
  if (!engine.reports()) return;
  if (show) say("\n");
  if (options.json) {
    nlohmann::json out = {{"nll_per_token", score.nll_per_token}, {"tokens", score.tokens}};
    fmt::print("{}\n", to_line(out));
  } else {
    fmt::print("{:.6f} nats per token over {} tokens\n", score.nll_per_token, score.tokens);
  }
}

}  // namespace

void add_score_command(CLI::App& app) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command =
      app.add_subcommand("score", "Negative log-likelihood of documents under a model");
  add_model_options(command, options->model);
  command->add_option("--file", options->file, "documents separated by NUL bytes")->required();
  command->add_option("--max-tokens-per-doc", options->max_tokens_per_doc, "cut longer documents")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 24))
      ->envname("STRETTO_MAX_TOKENS_PER_DOC")
      ->capture_default_str();
  command->add_flag("--split-special-tokens", options->split_special_tokens,
                    "special tokens that a document spells out are ordinary text");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { score(*options); });
}

}  // namespace stretto
