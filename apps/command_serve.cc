#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "apps/api_keys.h"
#include "apps/commands.h"
#include "apps/end_watch.h"
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

constexpr std::chrono::seconds kTellProgress{3};
// For a step that is under way at the end, and for memory to be given back.
constexpr std::chrono::seconds kEndTime{5};
constexpr std::chrono::milliseconds kTellClients{500};  // that their requests have died

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  StepOptions steps;
  std::string ready_file, api_key_file;
  double shutdown_timeout_s = 10, keep_alive_s = 15;
  // Of HttpLimits, as they are told.
  std::string max_body = "32MiB", max_header = "16KiB";
  double header_timeout_s = 10, body_timeout_s = 60, idle_timeout_s = 75, write_timeout_s = 30;
  bool no_access_log = false;
};

// Streams hold a descriptor each.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // what stays is enough for fewer
}

std::size_t num_open_descriptors() {
  std::error_code none;
  const std::filesystem::directory_iterator all("/proc/self/fd", none);
  return none ? 0 : static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// As many connections as there are descriptors for beside the server's own. UserError where too few
// are left.
void fit_connections(HttpLimits& limits, int num_gpus) {
  constexpr std::size_t kOwn = 40;     // sockets, files, and connections that are turned away
  constexpr std::size_t kOfAGpu = 64;  // its driver's
  constexpr std::size_t kFewest = 16;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const std::size_t own =
      num_open_descriptors() + kOwn + kOfAGpu * static_cast<std::size_t>(num_gpus);
  const std::size_t fewest = std::min(kFewest, limits.max_connections);
  if (limit.rlim_cur < own + fewest) {
    throw UserError(
        fmt::format("too few descriptors: {} (ulimit -n); the server itself needs {}, "
                    "and {} connections one each",
                    limit.rlim_cur, own, fewest));
  }
  const std::size_t room = limit.rlim_cur - own;
  if (room >= limits.max_connections) return;
  say("stretto: {} connections at once, not {} (--max-connections): there are {} descriptors "
      "(ulimit -n)\n",
      room, limits.max_connections, limit.rlim_cur);
  limits.max_connections = room;
}

// 0 stays what it is, and nothing else becomes it.
std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

void read_limits(ServeOptions& options) {
  constexpr std::size_t kMostHeader = std::size_t{1} << 30;  // Boost counts in 32 bits
  HttpLimits& limits = options.server.limits;
  limits.max_body_bytes = bytes_of("--max-body-bytes", options.max_body);
  limits.max_header_bytes = bytes_of("--max-header-bytes", options.max_header);
  if (limits.max_header_bytes > kMostHeader) {
    throw UserError("--max-header-bytes: at most 1GiB");
  }
  if (limits.max_header_bytes == 0 || limits.max_body_bytes == 0) {
    throw UserError(fmt::format("--max-{}-bytes: 0: every request would be refused",
                                limits.max_header_bytes == 0 ? "header" : "body"));
  }
  limits.header_timeout = milliseconds_of(options.header_timeout_s);
  limits.body_timeout = milliseconds_of(options.body_timeout_s);
  limits.idle_timeout = milliseconds_of(options.idle_timeout_s);
  limits.write_timeout = milliseconds_of(options.write_timeout_s);
  limits.idle_piece_after = milliseconds_of(options.keep_alive_s);
}

std::string served_name(const ServeOptions& options) {
  if (!options.server.model_name.empty()) return options.server.model_name;
  std::filesystem::path path = std::filesystem::absolute(options.model.model).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// The one line of a server on standard output, for which others wait.
void tell_address(const std::string& url) {
  const std::string line = fmt::format("listening on {}\n", url);
  errno = 0;
  if (std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0) {
    return;
  }
  throw UserError(fmt::format("standard output: cannot be written: {}; it gets the line '{}'",
                              std::strerror(errno), line.substr(0, line.size() - 1)));
}

void serve(ServeOptions& options) {
  choose_device(options.model);
  if (options.model.dp > 1) {
    throw UserError("--dp: a server has one group of ranks; start one server for each group");
  }
  if (options.model.launcher.processes()) {
    throw UserError("--launcher processes: the ranks of a server are threads of one process");
  }
  raise_descriptor_limit();
  fit_connections(options.server.limits,
                  options.model.target() == Target::kCuda ? options.model.num_ranks() : 0);
  std::signal(SIGPIPE, SIG_IGN);  // who reads the log may end before the server does
  ReadyFile ready(options.ready_file);
  EndWatch end_watch([&] { ready.withdraw(); });
  options.server.on_signal = [&, timeout = milliseconds_of(options.shutdown_timeout_s)](int count) {
    end_watch.end_in((count == 1 ? timeout : timeout.zero()) + kEndTime,
                     "the engine's threads do not end; the process ends without them");
  };
  if (options.steps.serving.restart_on_fault) {
    options.steps.serving.on_lost = [&](const std::string&) {
      end_watch.end_in(kTellClients,
                       "--restart-on-fault: no thread can be ended, so the process "
                       "ends, to be started again from outside");
    };
  }
  read_step_options(options.steps);
  if (!options.api_key_file.empty()) {
    for (std::string& key : read_keys(options.api_key_file)) {
      options.server.api_keys.push_back(std::move(key));
    }
  }
  options.server.model_name = served_name(options);
  options.server.version = STRETTO_VERSION;
  options.server.access_log = !options.no_access_log;
  options.server.shutdown_timeout = milliseconds_of(options.shutdown_timeout_s);
  read_limits(options);
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
  tell_address(server.url());
  const bool texts_have_ended = server.run();
  ready.withdraw();
  for (int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  if (engine->state().lost) {
    end_watch.end_in({},
                     "the engine died of ranks that do not return; the process ends without them");
  }
  engine->stop();                        // what it cuts short tells the server
  if (!texts_have_ended) std::_Exit(0);  // no fault: nobody waits for those texts any more
  engine.reset();
}

// What clients may send, and how long they may take.
void add_limits(CLI::App* command, ServeOptions& options) {
  HttpLimits& limits = options.server.limits;
  auto bytes = [&](const char* name, std::string& value, const char* text) {
    command->add_option(name, value, text)->capture_default_str();
  };
  bytes("--max-body-bytes", options.max_body, "a request's body, as 32MiB; beyond, 413");
  bytes("--max-header-bytes", options.max_header, "a request's header, as 16KiB; beyond, 431");
  command->add_option("--max-headers", limits.max_headers, "lines of a header; beyond, 431")
      ->check(positive())
      ->capture_default_str();
  command
      ->add_option("--max-connections", limits.max_connections,
                   "connections at once; others get 503")
      ->check(positive())
      ->capture_default_str();
  auto seconds = [&](const char* name, double& value, const char* text) {
    command->add_option(name, value, text)->check(between(0.001, 86400))->capture_default_str();
  };
  seconds("--header-timeout", options.header_timeout_s,
          "seconds for a header, from its first byte; then the connection is closed");
  seconds("--body-timeout", options.body_timeout_s, "... for a body");
  seconds("--idle-timeout", options.idle_timeout_s, "... without a request");
  seconds("--write-timeout", options.write_timeout_s,
          "... in which a client takes nothing of its answer");
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
      ->add_option("--max-wait-steps", serving.most_waits,
                   "steps of the model after which a request that waits comes before all other "
                   "priorities; 0: it waits as long as higher ones come")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--max-queue", serving.max_queue,
                   "requests that may wait; beyond, clients are told to come again")
      ->check(positive())
      ->capture_default_str();
  command
      ->add_option("--request-timeout", serving.request_seconds,
                   "seconds that a request may take, waiting included; 0: any time")
      ->check(between(0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--step-timeout", serving.step_seconds,
                   "seconds that a step of the model may take; then the engine is dead, and its "
                   "requests get 503")
      ->check(between(0.05, 86400))
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
      ->check(between(0, 86400))
      ->capture_default_str();
  command
      ->add_option("--sse-keep-alive", options->keep_alive_s,
                   "seconds without news after which a stream gets a comment, so that nobody on "
                   "the way takes it for dead; 0: never")
      ->check(between(0, 3600))
      ->capture_default_str();
  add_limits(command, *options);
  command->add_option("--ready-file", options->ready_file,
                      "a file that has the server's URL while it is ready");
  command->add_flag("--no-access-log", options->no_access_log, "no line for each request");
  command->callback([options] { serve(*options); });
}

}  // namespace stretto
