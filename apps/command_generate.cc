#include <fmt/format.h>

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
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

struct GenerateOptions {
  ModelOptions model;
  std::vector<std::string> prompts;
  std::string trace;
  GenerateRequest request;
  bool json = false, summary = false, split_special_tokens = false;
};

nlohmann::json to_json(const GenerateRequest& request, const GenerateResult& result) {
  return {{"prompt_token_ids", request.prompt},
          {"token_ids", result.token_ids},
          {"text", result.text},
          {"finish_reason", result.finish_reason},
          {"tokens_per_second", result.tokens_per_second()},
          {"prefill_seconds", result.prefill_seconds}};
}

// One object, or with several prompts {"results": [...]} in their order.
void print_json(const std::vector<GenerateRequest>& requests,
                const std::vector<GenerateResult>& results) {
  nlohmann::json out = nlohmann::json::array();
  for (std::size_t i = 0; i < results.size(); ++i) out.push_back(to_json(requests[i], results[i]));
  out = results.size() == 1 ? out.front() : nlohmann::json{{"results", out}};
  fmt::print("{}\n", to_line(out));
}

void print_summary(const GenerateResult& result) {
  say("{} tokens, {:.1f} tokens/s, prefill {:.3f} s, finished by {}\n", result.token_ids.size(),
      result.tokens_per_second(), result.prefill_seconds, result.finish_reason);
}

void print_roles(Engine& engine) {
  for (const auto& [role, time] : engine.world().recorder().time_per_role()) {
    say("  {:<12} busy {:9.3f} ms, waiting for communication {:9.3f} ms\n", role,
        static_cast<double>(time.busy_ns) / 1e6, static_cast<double>(time.wait_ns) / 1e6);
  }
}

void generate(GenerateOptions& options) {
  choose_device(options.model);
  if (!options.trace.empty()) check_writable(options.trace);
  ModelFiles files = open_model(options.model);
  std::vector<GenerateRequest> requests;
  for (const std::string& prompt : options.prompts) {
    if (prompt.empty()) throw UserError("--prompt is empty");
    requests.push_back(options.request);
    requests.back().prompt =
        files.tokenizer.encode(prompt, {.split_special_tokens = options.split_special_tokens});
  }
  bool show_roles =
      options.summary && options.model.target() == Target::kCpu && options.model.dp == 1;
  bool record = !options.trace.empty() || show_roles;
  if (!options.trace.empty() && options.model.launcher.processes()) {
    throw UserError("--trace: timelines are of ranks that are threads");
  }
  activation_dtype(options.model.dtype, files.config);
  if (ran_as_processes(options.model)) return;
  Engine engine(files, engine_options(options.model, files, record));
  OnText stream;
  bool streams = !options.json && requests.size() == 1;
  if (streams) {
    stream = [](const std::string& text) {
      fmt::print("{}", text);
      std::fflush(stdout);
    };
  }
  std::vector<GenerateResult> results = engine.generate(requests, stream);
  if (results.empty()) return;  // of a rank other than 0
  if (options.json) print_json(requests, results);
  if (streams) fmt::print("\n");
  for (const GenerateResult& result : results) {
    if (!options.json && !streams) fmt::print("{}\n", result.text);
    if (options.summary) print_summary(result);
  }
  if (show_roles) print_roles(engine);
  if (!options.trace.empty()) {
    engine.world().recorder().write_trace(options.trace);
    say("timeline: {} (open it at ui.perfetto.dev)\n", options.trace);
  }
}

void add_sampling(CLI::App* command, SamplingParams& sampling) {
  command->add_option("--temperature", sampling.temperature, "0: greedy")
      ->envname("STRETTO_TEMPERATURE")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "keep the k best; 0: off")
      ->envname("STRETTO_TOP_K");
  command->add_option("--top-p", sampling.top_p, "keep the best until p; 1: off")
      ->envname("STRETTO_TOP_P");
  command->add_option("--min-p", sampling.min_p, "drop below p times the best; 0: off")
      ->envname("STRETTO_MIN_P");
  command->add_option("--repetition-penalty", sampling.repetition_penalty, "above 1: repeat less")
      ->envname("STRETTO_REPETITION_PENALTY");
  command->add_option("--seed", sampling.seed, "of the draw")->envname("STRETTO_SEED");
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a model");
  add_model_options(command, options->model);
  command
      ->add_option("--prompt", options->prompts,
                   "text to continue; may be repeated: texts are then printed once all are there")
      ->allow_extra_args(false)
      ->required();
  command->add_flag("--split-special-tokens", options->split_special_tokens,
                    "special tokens that a prompt spells out are ordinary text");
  command->add_option("--max-tokens", options->request.max_tokens, "most tokens to generate")
      ->envname("STRETTO_MAX_TOKENS")
      ->capture_default_str();
  add_sampling(command, options->request.sampling);
  command->add_option("--stop", options->request.stop, "end before this text; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_flag("--ignore-eos", options->request.ignore_eos, "go on after end-of-sequence tokens")
      ->envname("STRETTO_IGNORE_EOS");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->add_flag("--summary", options->summary, "print time per role at the end, on stderr");
  command->add_option("--trace", options->trace, "write a timeline that opens in Perfetto");
  command->callback([options] { generate(*options); });
}

}  // namespace stretto
