#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/commands.h"
#include "apps/model_options.h"
#include "apps/number_checks.h"
#include "apps/serving_options.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/base/say.h"
#include "stretto/runtime/ready_file.h"
#include "stretto/server/server.h"

namespace stretto {
namespace {

constexpr std::size_t kMostKeyBytes = std::size_t{1} << 20;
constexpr std::chrono::seconds kTellProgress{3};

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  StepOptions steps;
  std::string ready_file, api_key_file;
  double shutdown_timeout_s = 10, keep_alive_s = 15;
  bool no_access_log = false;
};

// Streams hold a descriptor each.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // what stays is enough for fewer
}

// One key a line.
void read_keys(const std::string& path, std::vector<std::string>& keys) {
  if (path.empty()) return;
  std::string text = read_file(path, kMostKeyBytes);
  std::size_t before = keys.size();
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find('\n', at), text.size());
    std::string key = text.substr(at, end - at);
    if (key.ends_with('\r')) key.pop_back();
    if (!key.empty()) keys.push_back(key);
    at = end + 1;
  }
  if (keys.size() == before) throw UserError(fmt::format("{}: holds no API key", path));
}

std::string served_name(const ServeOptions& options) {
  if (!options.server.model_name.empty()) return options.server.model_name;
  std::filesystem::path path = std::filesystem::absolute(options.model.model).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

void serve(ServeOptions& options) {
  choose_device(options.model);
  if (options.model.dp > 1) {
    throw UserError("--dp: a server has one group of ranks; start one server for each group");
  }
  if (options.model.launcher.processes()) {
    throw UserError("--launcher processes: the ranks of a server are threads of one process");
  }
  ReadyFile ready(options.ready_file);
  read_step_options(options.steps);
  read_keys(options.api_key_file, options.server.api_keys);
  raise_descriptor_limit();
  options.server.model_name = served_name(options);
  options.server.version = STRETTO_VERSION;
  options.server.access_log = !options.no_access_log;
  options.server.shutdown_timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.shutdown_timeout_s * 1000));
  options.server.limits.idle_piece_after =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.keep_alive_s * 1000));
  ModelFiles files = open_model(options.model);
  activation_dtype(options.model.dtype, files.config);
  auto engine = std::make_unique<ServingEngine>(files, engine_options(options.model, files),
                                                options.steps.serving);
  Server server(files, *engine, options.server);  // a port that is taken shows before the wait
  say("stretto: loading {} ({} ranks, {})\n", options.model.model, options.model.num_ranks(),
      options.model.device);
  server.start();
  while (!engine->wait_until_ready(kTellProgress)) {
    say("stretto: loading, {}\n", engine->state().loads);
  }
  constexpr double kMiB = 1 << 20;
  const CacheSize& m = engine->memory();
  auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / kMiB; };
  const bool on_gpus = options.model.target() == Target::kCuda;
  say("stretto: on each {} weights {:.1f} MiB, steps {:.1f} MiB ({:.1f} without sharing){}\n",
      on_gpus ? "GPU" : "rank", mib(m.weight_bytes), mib(m.work_bytes), mib(m.unshared_bytes),
      on_gpus ? fmt::format(", kept free {:.1f} MiB", mib(m.kept_bytes)) : "");
  say("stretto: cache {:.1f} MiB of {}, {} tokens, {} requests at full length\n",
      mib(engine->cache_bytes()), engine->cache_dtype(), engine->cache_tokens(),
      engine->cache_tokens() / engine->max_model_len());
  if (options.steps.serving.fastest) {
    say("stretto: --fastest: {}\n",
        on_gpus ? "a request that runs alone may have other last bits than in company"
                : "on CPU ranks nothing is faster; answers are those without it");
  }
  say("stretto: ready, context {} tokens\n", engine->max_model_len());
  say("stretto: {}\n", server.describe_chat());
  ready.announce(server.url());
  server.take_signals();
  fmt::print("listening on {}\n", server.url());
  std::fflush(stdout);
  server.run();
  ready.withdraw();
  engine.reset();  // what it cuts short tells the server
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand(
      "serve", "Answer completion requests over HTTP, as the OpenAI API has them");
  options->model.device = "auto";
  add_model_options(command, options->model);
  ServerOptions& server = options->server;
  command->add_option("--host", server.host, "address to listen on")
      ->envname("STRETTO_HOST")
      ->capture_default_str();
  command->add_option("--port", server.port, "port to listen on; 0: a free one")
      ->envname("STRETTO_PORT")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--served-model-name", server.model_name,
                      "the model's name in requests and answers; default: its directory's");
  add_step_options(command, options->steps);
  ServingOptions& serving = options->steps.serving;
  command->add_flag("--no-prefix-caching{false}", serving.prefix_caching,
                    "compute prompts that begin like others again");
  command
      ->add_option("--max-queue", serving.max_queue,
                   "requests that may wait; beyond, clients are told to come again")
      ->check(positive())
      ->capture_default_str();
  command
      ->add_option("--request-timeout", serving.request_seconds,
                   "seconds that a request may take, waiting included; 0: any time")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--restart-on-fault", serving.restart_on_fault,
                    "start all ranks again where one faults; requests that run get 503");
  command->add_option("--chat-template", server.chat.template_file,
                      "a chat template (Jinja) in place of the model's");
  command->add_option("--tool-call-parser", server.chat.tool_parser,
                      "how the model writes calls of tools: hermes, llama3, mistral or none; "
                      "default: by its template");
  command->add_option("--reasoning-parser", server.chat.reasoning_parser,
                      "whether text between <think> and </think> is told apart: think or none; "
                      "default: by its template");
  command->add_option("--api-key", server.api_keys, "a key that clients must show; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--api-key-file", options->api_key_file, "a file with such keys, one a line");
  command
      ->add_option("--shutdown-timeout", options->shutdown_timeout_s,
                   "seconds that answers may still take after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--sse-keep-alive", options->keep_alive_s,
                   "seconds without news after which a stream gets a comment, so that nobody on "
                   "the way takes it for dead; 0: never")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--ready-file", options->ready_file,
                      "a file that has the server's URL while it is ready");
  command->add_flag("--no-access-log", options->no_access_log, "no line for each request");
  command->callback([options] { serve(*options); });
}

}  // namespace stretto
