#include "stretto/server/server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/base/threads.h"
#include "stretto/engine/run_requests.h"
#include "stretto/server/access_log.h"
#include "stretto/server/api_error.h"
#include "stretto/server/chat_completion.h"
#include "stretto/server/completion.h"
#include "stretto/server/metrics.h"
#include "stretto/server/page.h"
#include "stretto/server/request_reader.h"
#include "stretto/server/responses.h"
#include "stretto/server/stats.h"
#include "stretto/server/text_workers.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaitingTexts = 4096;
// A body beyond is a long text: about a tenth of a second's work.
constexpr std::size_t kMostShortBody = std::size_t{256} << 10;
constexpr std::size_t kTokensBetweenLooks = 4096;  // whether they are wanted
// At the end, for texts that are worked on.
constexpr std::chrono::milliseconds kTextsEnd{300};
constexpr std::size_t kMostIdBytes = 128;
constexpr CompletionLimits kLimits;

// Letters, digits and a few signs: safe in headers, logs and URLs.
bool is_plain_id(std::string_view text) {
  return !text.empty() && text.size() <= kMostIdBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
         });
}

std::string drawn_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

// As long for a wrong key as for a right one of that length.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

// Nobody waits for the answer any more.
struct ClientGone {};

struct Route {
  const char* method;
  const char* path;
  bool is_open;       // answered without a key
  bool is_text_work;  // on a text worker
};

std::string loading(const ServingEngine::State& state) {
  return "the server is loading the model, " + state.loads;
}

}  // namespace

struct Server::State {
  State(const ModelFiles& its_files, ServingEngine& its_engine, ServerOptions its_options);

  void take(const std::shared_ptr<HttpExchange>& exchange);
  void on_signal(int count);

  const ModelFiles& files;
  const SamplingDefaults defaults;
  const ChatModel chat;
  ServingEngine& engine;
  ServerOptions options;
  std::int64_t created = static_cast<std::int64_t>(std::time(nullptr));
  Metrics metrics;
  AccessLog access_log;
  OutputGrammars grammars;
  AnswerContext context;
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Completion>> running;  // by id
  std::atomic<bool> draining{false}, ends_now{false};
  std::thread drainer, serving;
  bool takes_signals = false;
  // In this order: what is under way ends before what it uses.
  std::optional<HttpServer> http;
  std::optional<TextWorkers> workers;

 private:
  // One request on its way.
  struct Call {
    explicit Call(std::shared_ptr<HttpExchange> its_exchange) : exchange(std::move(its_exchange)) {}

    const HttpRequest& request() const { return exchange->request(); }
    bool is_long() const { return request().body.size() > kMostShortBody; }
    // Counted from its arrival.
    void limit_to(std::optional<double> seconds);
    // ApiError 408 where its time is over, ClientGone.
    void require_wanted() const;

    std::shared_ptr<HttpExchange> exchange;
    std::string id;
    const Clock::time_point arrived = Clock::now();
    std::optional<Clock::time_point> deadline = {};
    std::atomic<bool> is_gone{false};
    bool is_responses = false;  // errors name the fields of that form
  };
  using CallPtr = std::shared_ptr<Call>;
  using Handle = void (State::*)(const CallPtr&);
  struct Routed {
    Route route;
    Handle handle;
  };
  static const std::vector<Routed>& routes();
  static std::vector<Routed> paths();  // those of the API

  const Routed& route_of(const HttpRequest& request) const;
  void require_key(const HttpRequest& request) const;
  void require_ready() const;
  using Length = TextWorkers::Length;
  using Work = std::function<void()>;
  // On a text worker. ApiError where too many wait.
  void read_text(const CallPtr& call, Length length, Work work);
  // What it throws is answered.
  void handle(const CallPtr& call, const Work& work);
  void refuse(const CallPtr& call);
  void answer(const CallPtr& call, HttpResponse response, const AnswerSummary& summary = {});
  void note(const CallPtr& call, const AnswerSummary& summary);

  void health(const CallPtr& call);
  void version(const CallPtr& call);
  void load(const CallPtr& call);
  void stats(const CallPtr& call);
  void page(const CallPtr& call);
  void show_metrics(const CallPtr& call);
  void models(const CallPtr& call);
  void tokenize(const CallPtr& call);
  void tell_tokens(const CallPtr& call, const std::vector<int>& ids, bool with_texts);
  void detokenize(const CallPtr& call);
  void complete(const CallPtr& call);
  void chat_complete(const CallPtr& call);
  void chat_render(const CallPtr& call);
  void respond(const CallPtr& call);
  using Make = std::function<std::shared_ptr<Completion>(Completion::OnDone)>;
  void run(const CallPtr& call, const Make& make);
  void start(const CallPtr& call, const std::shared_ptr<Completion>& completion);
  void forget(const CallPtr& call);  // in `running`
  ChatRequest read_chat(const CallPtr& call) const;
  // Goes on with a chat request; a template of its own may take long.
  void with_template(const CallPtr& call, const ChatRequest& request, Work work);
  void abort(const CallPtr& call);

  Json model_card() const;
  void require_model(const std::string& name) const;
  void watch_drain();
};

Server::State::State(const ModelFiles& its_files, ServingEngine& its_engine,
                     ServerOptions its_options)
    : files(its_files),
      defaults(read_sampling_defaults(its_files.directory)),
      chat(its_files.directory, its_options.chat),
      engine(its_engine),
      options(std::move(its_options)),
      metrics(options.model_name),
      grammars(files.tokenizer, static_cast<int>(files.config.vocab_size)),
      context{files,
              engine,
              metrics,
              grammars,
              options.model_name,
              files.tokenizer.most_text_of_a_token()} {
  for (const std::string& key : options.api_keys) {
    if (key.empty()) throw UserError("an API key is empty");
  }
}

const std::vector<Server::State::Routed>& Server::State::routes() {
  static const std::vector<Routed> all = [] {
    std::vector<Routed> out = paths();
    for (const PageFile& file : page_files()) {
      out.push_back({{"GET", file.path, true, false}, &State::page});
    }
    return out;
  }();
  return all;
}

std::vector<Server::State::Routed> Server::State::paths() {
  return {
      {{"GET", "/health", true, false}, &State::health},
      {{"GET", "/ping", true, false}, &State::health},
      {{"GET", "/version", true, false}, &State::version},
      {{"GET", "/load", false, false}, &State::load},
      {{"GET", "/stats", false, false}, &State::stats},
      {{"GET", "/metrics", true, false}, &State::show_metrics},
      {{"GET", "/v1/models", false, false}, &State::models},
      {{"POST", "/v1/completions", false, true}, &State::complete},
      {{"POST", "/v1/chat/completions", false, true}, &State::chat_complete},
      {{"POST", "/v1/chat/completions/render", false, true}, &State::chat_render},
      {{"POST", "/v1/responses", false, true}, &State::respond},
      {{"POST", "/tokenize", false, true}, &State::tokenize},
      {{"POST", "/detokenize", false, true}, &State::detokenize},
      {{"POST", "/abort_requests", false, false}, &State::abort},
  };
}

const Server::State::Routed& Server::State::route_of(const HttpRequest& request) const {
  std::string path = request.path;
  if (path.starts_with("/v1/models/")) path = "/v1/models";
  std::string others;
  for (const Routed& routed : routes()) {
    if (path != routed.route.path) continue;
    std::string_view method = request.method == "HEAD" ? "GET" : request.method;
    if (method == routed.route.method) return routed;
    others += (others.empty() ? "" : ", ") + std::string(routed.route.method);
    if (routed.route.method == std::string_view("GET")) others += ", HEAD";
  }
  if (others.empty()) {
    throw ApiError(404, fmt::format("there is no path '{}' here; /openapi.json lists them",
                                    printable(request.path, 100)));
  }
  throw ApiError(405, "this path takes " + others, "", {{"Allow", others}});
}

void Server::State::require_key(const HttpRequest& request) const {
  if (options.api_keys.empty()) return;
  std::string_view given;
  constexpr std::string_view kScheme = "bearer ";  // in any case (RFC 7235, 2.1)
  auto header = request.header("authorization");
  if (header && equal_in_any_case(header->substr(0, kScheme.size()), kScheme)) {
    given = header->substr(kScheme.size());
  } else if (auto key = request.header("x-api-key")) {
    given = *key;
  }
  bool known = false;
  for (const std::string& key : options.api_keys) known |= equal_in_constant_time(key, given);
  if (!known) throw ApiError(401, "the API key is missing or wrong");
}

void Server::State::require_ready() const {
  const ServingEngine::State state = engine.state();
  const bool is_first = state.restarts_for.empty();  // requests wait for later ones
  if (is_first && !state.loads.empty()) throw ApiError(503, loading(state));
}

void Server::State::take(const std::shared_ptr<HttpExchange>& exchange) {
  auto call = std::make_shared<Call>(exchange);
  auto given = call->request().header("x-request-id");
  call->id = given && is_plain_id(*given) ? std::string(*given) : drawn_id();
  try {
    const Routed& routed = route_of(call->request());
    if (!routed.route.is_open) {
      require_key(call->request());
      require_ready();
    }
    const Handle handler = routed.handle;
    if (!routed.route.is_text_work) return handle(call, [&] { (this->*handler)(call); });
    if (engine.request_seconds() > 0) call->limit_to(engine.request_seconds());
    exchange->on_gone([weak = std::weak_ptr(call)] {
      if (auto gone = weak.lock()) gone->is_gone = true;
    });
    read_text(call, call->is_long() ? Length::kLong : Length::kShort, [this, call, handler] {
      call->require_wanted();
      (this->*handler)(call);
    });
  } catch (const ApiError& e) {
    answer(call, e.response(), {.status = e.status()});
  }
}

void Server::State::Call::limit_to(std::optional<double> seconds) {
  if (!seconds) return;
  const auto end = arrived + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(*seconds));
  deadline = std::min(deadline.value_or(end), end);
}

void Server::State::Call::require_wanted() const {
  if (is_gone) throw ClientGone();
  if (deadline && Clock::now() >= *deadline) {
    throw ApiError(408, "the time limit of the request has passed");
  }
}

void Server::State::read_text(const CallPtr& call, Length length, Work work) {
  const bool taken =
      workers->post(length, {.work = [this, call, work = std::move(work)] { handle(call, work); },
                             .refuse = [this, call] { refuse(call); }});
  if (taken) return;
  if (draining) throw ApiError(503, "the server is shutting down");
  throw ApiError(429, "too many requests are waiting to be read");
}

void Server::State::refuse(const CallPtr& call) {
  handle(call, [&] {
    if (call->is_gone) throw ClientGone();
    throw ApiError(503, "the server is shutting down");
  });
}

void Server::State::handle(const CallPtr& call, const Work& work) {
  try {
    work();
  } catch (const ClientGone&) {
    note(call, {.status = kClientGone});
  } catch (const ApiError& e) {
    const ApiError told = call->is_responses ? in_words_of_responses(e) : e;
    answer(call, told.response(), {.status = told.status()});
  } catch (const UserError& e) {
    answer(call, ApiError(400, e.what()).response(), {.status = 400});
  } catch (const std::exception& e) {
    log_warning(fmt::format("request {}: {}", call->id, e.what()));
    answer(call, ApiError(500, "an error of the server; its log has more").response(),
           {.status = 500});
  }
}

void Server::State::answer(const CallPtr& call, HttpResponse response,
                           const AnswerSummary& summary) {
  response.headers.emplace_back("X-Request-Id", call->id);
  AnswerSummary noted = summary;
  noted.status = response.status;
  note(call, noted);
  call->exchange->respond(std::move(response));
}

// A line of JSON for each request, but for those that machines ask all the time.
void Server::State::note(const CallPtr& call, const AnswerSummary& summary) {
  const HttpRequest& request = call->request();
  bool is_known = std::any_of(routes().begin(), routes().end(), [&](const Routed& routed) {
    return request.path == routed.route.path;
  });
  metrics.count_response(is_known ? request.path : "other", summary.status);
  static constexpr std::array kUnsaid = {"/health", "/ping",  "/metrics",
                                         "/load",   "/stats", "/v1/models"};
  const bool is_unsaid = std::find(kUnsaid.begin(), kUnsaid.end(), request.path) != kUnsaid.end();
  if (!options.access_log || is_unsaid || request.path.starts_with("/page/")) return;
  std::chrono::duration<double, std::milli> took = Clock::now() - call->arrived;
  Json line = {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
               {"id", call->id},
               {"peer", request.peer},
               {"method", request.method.substr(0, 16)},
               {"path", request.path.substr(0, 256)},
               {"status", summary.status},
               {"ms", std::round(took.count() * 1000) / 1000}};
  if (summary.prompt_tokens > 0) {
    line["prompt_tokens"] = summary.prompt_tokens;
    line["completion_tokens"] = summary.tokens;
  }
  access_log.add(to_line(line));
}

void Server::State::health(const CallPtr& call) {
  const ServingEngine::State state = engine.state();
  if (!state.died_of.empty()) throw ApiError(503, "the engine has died: " + state.died_of);
  if (!state.fault.empty()) throw ApiError(503, "the engine has faulted: " + state.fault);
  if (!state.restarts_for.empty()) {
    throw ApiError(503, fmt::format("the engine starts again after a fault: {}; {}",
                                    state.restarts_for, state.loads));
  }
  if (!state.loads.empty()) throw ApiError(503, loading(state));
  if (draining) throw ApiError(503, "the server is shutting down");
  answer(call, {.body = ""});
}

void Server::State::version(const CallPtr& call) {
  answer(call, {.body = to_line({{"version", options.version}})});
}

void Server::State::load(const CallPtr& call) {
  ServingEngine::State state = engine.state();
  answer(call, {.body = to_line({{"server_load", state.running + state.waiting}})});
}

void Server::State::page(const CallPtr& call) {
  for (const PageFile& file : page_files()) {
    if (call->request().path != file.path) continue;
    return answer(call, {.content_type = file.content_type,
                         .body = std::string(file.text),
                         .headers = page_headers()});
  }
}

void Server::State::stats(const CallPtr& call) {
  std::vector<std::shared_ptr<Completion>> open;
  {
    std::lock_guard lock(mutex);
    for (const auto& [id, weak] : running) {
      if (auto completion = weak.lock()) open.push_back(std::move(completion));
    }
  }
  Json out = stats_json(engine, metrics.totals(), open);
  out["version"] = options.version;
  out["model"] = options.model_name;
  out["chat"] = {{"available", chat.missing().empty()}, {"missing", chat.missing()}};
  answer(call, {.body = to_line(out), .headers = {{"Cache-Control", "no-store"}}});
}

void Server::State::show_metrics(const CallPtr& call) {
  ServingEngine::State state = engine.state();
  answer(call, {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = metrics.text({.running = state.running,
                                      .waiting = state.waiting,
                                      .connections = http->num_connections(),
                                      .preemptions = state.preemptions,
                                      .restarts = state.restarts,
                                      .prefix_queries = state.prefix_queries,
                                      .prefix_hits = state.prefix_hits,
                                      .chosen_by_device = state.chosen_by_device,
                                      .chosen_by_host = state.chosen_here,
                                      .device_works = state.device_works,
                                      .device_waits = state.device_waits,
                                      .cache_use = state.cache_use,
                                      .cache_pages = engine.cache_tokens() / kPageTokens,
                                      .page_tokens = kPageTokens,
                                      .cache_dtype = engine.cache_dtype(),
                                      .steps = state.steps})});
}

Json Server::State::model_card() const {
  return {{"id", options.model_name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "stretto"},
          {"root", options.model_name},
          {"parent", nullptr},
          {"max_model_len", engine.max_model_len()},
          {"permission", Json::array()}};
}

void Server::State::require_model(const std::string& name) const {
  if (name.empty() || name == options.model_name) return;
  throw ApiError(404,
                 fmt::format("the model '{}' is not served here; '{}' is", printable(name, 200),
                             options.model_name),
                 "model");
}

void Server::State::models(const CallPtr& call) {
  const std::string prefix = "/v1/models/";
  if (call->request().path.starts_with(prefix)) {
    require_model(call->request().path.substr(prefix.size()));
    return answer(call, {.body = to_line(model_card())});
  }
  answer(call, {.body = to_line({{"object", "list"}, {"data", Json::array({model_card()})}})});
}

void Server::State::tokenize(const CallPtr& call) {
  const Json json = request_object(call->request().body);
  const RequestReader reader(json, static_cast<int>(files.config.vocab_size), kLimits);
  require_model(reader.text("model", ""));
  const bool with_texts = reader.boolean("return_token_strs", false);
  if (reader.fields().has("messages")) {
    auto request = std::make_shared<ChatRequest>(read_chat(call));
    return with_template(call, *request, [this, call, request, with_texts] {
      tell_tokens(call, chat.render(*request, files.tokenizer).ids, with_texts);
    });
  }
  if (!reader.fields().has("prompt")) reader.fail("prompt", "is missing");
  call->limit_to(reader.seconds_allowed());
  call->require_wanted();
  tell_tokens(call,
              files.tokenizer.encode(
                  reader.text("prompt", ""),
                  {.add_special_tokens = reader.boolean("add_special_tokens", true),
                   .split_special_tokens = reader.boolean("split_special_tokens", false)}),
              with_texts);
}

void Server::State::tell_tokens(const CallPtr& call, const std::vector<int>& ids, bool with_texts) {
  call->require_wanted();
  Json out = {{"count", ids.size()},
              {"max_model_len", engine.max_model_len()},
              {"tokens", ids},
              {"token_strs", nullptr}};
  if (with_texts) {
    Json texts = Json::array();
    for (const int& id : ids) {
      if (texts.size() % kTokensBetweenLooks == 0) call->require_wanted();
      texts.push_back(files.tokenizer.decode({&id, 1}, false));
    }
    out["token_strs"] = std::move(texts);
  }
  answer(call, {.body = to_line(out)});
}

void Server::State::detokenize(const CallPtr& call) {
  const Json json = request_object(call->request().body);
  const RequestReader reader(json, static_cast<int>(files.config.vocab_size), kLimits);
  require_model(reader.text("model", ""));
  if (!reader.fields().has("tokens")) reader.fail("tokens", "is missing");
  call->limit_to(reader.seconds_allowed());
  call->require_wanted();
  const std::vector<int> ids = reader.token_ids("tokens");
  answer(call, {.body = to_line({{"prompt", files.tokenizer.decode(ids, false)}})});
}

void Server::State::complete(const CallPtr& call) {
  CompletionRequest request = parse_completion_request(call->request().body, defaults,
                                                       static_cast<int>(files.config.vocab_size));
  require_model(request.model);
  call->limit_to(request.timeout_s);
  run(call, [&](Completion::OnDone on_done) {
    return std::make_shared<Completion>(context, "cmpl-" + call->id, std::move(request),
                                        call->exchange, std::move(on_done));
  });
}

ChatRequest Server::State::read_chat(const CallPtr& call) const {
  ChatRequest request =
      parse_chat_request(call->request().body, defaults, static_cast<int>(files.config.vocab_size));
  require_model(request.completion.model);
  return request;
}

void Server::State::with_template(const CallPtr& call, const ChatRequest& request, Work work) {
  call->limit_to(request.completion.timeout_s);
  call->require_wanted();
  if (request.template_text.empty() || call->is_long()) return work();
  read_text(call, Length::kLong, [call, work = std::move(work)] {
    call->require_wanted();
    work();
  });
}

void Server::State::chat_complete(const CallPtr& call) {
  auto request = std::make_shared<ChatRequest>(read_chat(call));
  with_template(call, *request, [this, call, request] {
    run(call, [&](Completion::OnDone on_done) {
      return std::make_shared<ChatCompletion>(context, "chatcmpl-" + call->id, chat,
                                              std::move(*request), call->exchange,
                                              std::move(on_done));
    });
  });
}

void Server::State::respond(const CallPtr& call) {
  call->is_responses = true;
  auto request = std::make_shared<ResponsesRequest>(parse_responses_request(
      call->request().body, defaults, static_cast<int>(files.config.vocab_size)));
  require_model(request->chat.completion.model);
  with_template(call, request->chat, [this, call, request] {
    run(call, [&](Completion::OnDone on_done) {
      return std::make_shared<ResponsesCompletion>(context, "resp_" + call->id, chat,
                                                   std::move(*request), call->exchange,
                                                   std::move(on_done));
    });
  });
}

// The prompt that a chat request would run, and which parts of it are the user's.
void Server::State::chat_render(const CallPtr& call) {
  auto request = std::make_shared<ChatRequest>(read_chat(call));
  with_template(call, *request, [this, call, request] {
    const ChatPrompt prompt = chat.render(*request, files.tokenizer);
    call->require_wanted();
    Json pieces = Json::array();
    for (const jinja::Piece& piece : prompt.pieces) {
      pieces.push_back({{"text", piece.text}, {"from", piece.is_user ? "request" : "template"}});
    }
    answer(call, {.body = to_line({{"prompt", prompt.text},
                                   {"prompt_token_ids", prompt.ids},
                                   {"pieces", std::move(pieces)},
                                   {"max_model_len", engine.max_model_len()}})});
  });
}

void Server::State::run(const CallPtr& call, const Make& make) {
  {
    std::lock_guard lock(mutex);
    if (running.contains(call->id)) call->id = drawn_id();  // a client's id, used twice
  }
  std::shared_ptr<Completion> completion = make([this, call](const AnswerSummary& summary) {
    forget(call);
    note(call, summary);
  });
  call->require_wanted();
  {
    std::lock_guard lock(mutex);
    running[call->id] = completion;
  }
  if (!completion->needs_new_grammar() || call->is_long()) return start(call, completion);
  try {
    read_text(call, Length::kLong, [this, call, completion] { start(call, completion); });
  } catch (...) {
    forget(call);
    throw;
  }
}

void Server::State::forget(const CallPtr& call) {
  std::lock_guard lock(mutex);
  running.erase(call->id);
}

void Server::State::start(const CallPtr& call, const std::shared_ptr<Completion>& completion) {
  try {
    completion->start(call->arrived, call->deadline, [&] { call->require_wanted(); });
  } catch (...) {
    forget(call);
    throw;
  }
}

void Server::State::abort(const CallPtr& call) {
  const Json json = request_object(call->request().body);
  const RequestReader reader(json, static_cast<int>(files.config.vocab_size), kLimits);
  const auto ids = reader.checked(
      "request_ids", [&] { return reader.fields().optional_texts("request_ids", 4096); });
  if (!ids) reader.fail("request_ids", "is missing");
  Json aborted = Json::array();
  std::set<std::string> seen;
  for (const std::string& id : *ids) {
    if (!seen.insert(id).second) continue;
    std::shared_ptr<Completion> completion;
    {
      std::lock_guard lock(mutex);
      const bool is_short = id.starts_with("cmpl-") || id.starts_with("resp_");
      const std::size_t prefix = is_short ? 5 : id.starts_with("chatcmpl-") ? 9 : 0;
      auto at = running.find(id.substr(prefix));
      if (at != running.end()) completion = at->second.lock();
    }
    if (!completion) continue;
    completion->cancel();
    aborted.push_back(id);
  }
  answer(call, {.body = to_line({{"aborted", aborted}})});
}

void Server::State::on_signal(int count) {
  if (options.on_signal) options.on_signal(count);
  if (count > 1) {
    ends_now = true;
    return;
  }
  access_log.add("stretto: shutting down");
  draining = true;
  engine.drain();
  http->drain();
  drainer = start_thread("the end of what is under way", [this] { watch_drain(); });
}

// Until all is answered, or the time is over.
void Server::State::watch_drain() {
  const Clock::time_point end = Clock::now() + options.shutdown_timeout;
  while (!ends_now && Clock::now() < end) {
    ServingEngine::State state = engine.state();
    if (http->drained() && state.running + state.waiting == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::vector<std::shared_ptr<Completion>> left;
  {
    std::lock_guard lock(mutex);
    for (const auto& [id, weak] : running) {
      if (auto completion = weak.lock()) left.push_back(std::move(completion));
    }
  }
  for (const auto& completion : left) completion->cut_short();
  workers->refuse_rest();
  // What was cut short is told so, if it can be within a moment.
  const Clock::time_point told = Clock::now() + std::chrono::milliseconds(left.empty() ? 100 : 500);
  while (!http->drained() && Clock::now() < told) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  http->stop();
}

Server::Server(const ModelFiles& files, ServingEngine& engine, ServerOptions options)
    : state_(std::make_unique<State>(files, engine, std::move(options))) {
  State& state = *state_;
  state.workers.emplace(std::max(state.options.num_text_workers, 1), kMostWaitingTexts);
  state.http.emplace(
      state.options.host, state.options.port, state.options.limits,
      [&state](const std::shared_ptr<HttpExchange>& exchange) { state.take(exchange); });
}

Server::~Server() {
  if (!state_->serving.joinable()) return;
  state_->ends_now = true;
  state_->http->stop();
  join();
}

std::string Server::describe_chat() const { return state_->chat.describe(); }

std::string Server::url() const { return state_->http->url(); }

void Server::start() {
  state_->serving = start_thread("the server's clients", [this] { state_->http->run(); });
}

void Server::take_signals() {
  state_->takes_signals = true;
  state_->http->handle_signals([this](int count) { state_->on_signal(count); });
}

bool Server::run() {
  if (!state_->serving.joinable()) start();
  if (!state_->takes_signals) take_signals();
  join();
  if (!state_->workers->end_within(kTextsEnd)) {
    state_->access_log.end();  // its destructor is not for this end
    return false;
  }
  state_->workers.reset();
  return true;
}

void Server::join() {
  state_->serving.join();
  if (state_->drainer.joinable()) state_->drainer.join();
}

}  // namespace stretto
