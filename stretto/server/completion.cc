#include "stretto/server/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/server/api_error.h"

namespace stretto {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

std::int64_t num_code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// JSON has no infinity; vLLM writes this.
double finite(double logprob) { return std::max(logprob, -9999.0); }

std::uint64_t drawn_seed() {
  std::random_device device;
  return device();  // 32 bits, which every reader of JSON keeps
}

// Of a request that failed.
int status_of(ServedRequest::End end) {
  switch (end) {
    case ServedRequest::End::kDied:
      return 503;
    case ServedRequest::End::kRefused:
      return 400;
    case ServedRequest::End::kLate:
      return 408;
    default:
      return 500;
  }
}

}  // namespace

Completion::Completion(const AnswerContext& context, std::string id, CompletionRequest request,
                       std::shared_ptr<HttpExchange> exchange, OnDone on_done)
    : context_(context),
      id_(std::move(id)),
      request_(std::move(request)),
      exchange_(std::move(exchange)),
      on_done_(std::move(on_done)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      arrived_(Clock::now()) {
  if (!request_.has_seed) request_.sampling.seed = drawn_seed();
}

void AnswerContext::check_room(std::size_t text_bytes, const char* field) const {
  if (!most_token_bytes) return;
  const std::int64_t room = engine.max_model_len();
  const std::size_t least = (text_bytes + *most_token_bytes - 1) / *most_token_bytes;
  if (least < static_cast<std::size_t>(room)) return;
  throw ApiError(400,
                 fmt::format("maximum context length is {} tokens, the prompt has {} bytes, which "
                             "are {} tokens at least",
                             room, text_bytes, least),
                 field);
}

std::vector<int> Completion::tokenize(const CompletionRequest::Prompt& prompt) const {
  const auto* text = std::get_if<std::string>(&prompt);
  if (text != nullptr && !request_.truncate_prompt_tokens) {
    context_.check_room(text->size(), prompt_field_);
  }
  std::vector<int> ids = text != nullptr
                             ? context_.files.tokenizer.encode(
                                   *text, {.add_special_tokens = request_.add_special_tokens,
                                           .split_special_tokens = request_.split_special_tokens})
                             : std::get<std::vector<int>>(prompt);
  if (!request_.truncate_prompt_tokens) return ids;
  const std::int64_t asked = *request_.truncate_prompt_tokens;
  const std::int64_t room = context_.engine.max_model_len() - 1;
  const std::int64_t keep = asked < 0 ? room : asked;
  if (keep > room) {
    throw ApiError(400,
                   fmt::format("truncate_prompt_tokens: {} tokens leave no room for an answer, the "
                               "context has {}",
                               keep, room + 1),
                   "truncate_prompt_tokens");
  }
  if (static_cast<std::int64_t>(ids.size()) > keep) ids.erase(ids.begin(), ids.end() - keep);
  return ids;
}

bool Completion::needs_new_grammar() {
  if (request_.format) grammar_ = context_.grammars.known(*request_.format);
  return request_.format && !grammar_;
}

void Completion::start(Clock::time_point arrived, std::optional<Clock::time_point> deadline,
                       const std::function<void()>& require_wanted) {
  arrived_ = arrived;
  deadline_ = deadline;
  for (const CompletionRequest::Prompt& prompt : request_.prompts) {
    require_wanted();
    prompts_.push_back(tokenize(prompt));
    const auto* text = std::get_if<std::string>(&prompt);
    prompt_texts_.push_back(
        text != nullptr && !request_.truncate_prompt_tokens
            ? *text
            : context_.files.tokenizer.decode(prompts_.back(), request_.skip_special_tokens));
  }
  const std::int64_t room = context_.engine.max_model_len();
  for (const std::vector<int>& prompt : prompts_) {
    auto count = static_cast<std::int64_t>(prompt.size());
    if (prompt.empty()) throw ApiError(400, "prompt: has no tokens", "prompt");
    if (count + 1 <= room) continue;
    if (count == room && request_.max_tokens == 0) {
      throw ApiError(
          400,
          fmt::format("maximum context length is {} tokens, all of which the prompt has: "
                      "max_tokens 0 needs room for one, too",
                      room),
          prompt_field_);
    }
    throw ApiError(400,
                   fmt::format("maximum context length is {} tokens, you asked for {} ({} prompt + "
                               "{} completion)",
                               room, count + request_.max_tokens, count, request_.max_tokens),
                   prompt_field_);
  }
  require_wanted();
  if (request_.format && !grammar_) grammar_ = context_.grammars.of(*request_.format);
  require_wanted();
  std::vector<std::shared_ptr<ServedRequest>> served;
  {
    std::lock_guard lock(mutex_);
    for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      for (int number = 0; number < request_.n; ++number) make_choice(prompt, number);
    }
    num_open_ = choices_.size();
    for (const auto& choice : choices_) served.push_back(choice->served);
  }
  try {
    context_.engine.submit(served);
  } catch (const EngineGone& e) {
    throw ApiError(503, e.what());
  } catch (const EngineBusy& e) {
    context_.metrics.count_refused();
    throw ApiError(429, e.what());
  } catch (const UserError& e) {
    throw ApiError(400, e.what());
  }
  for (const std::vector<int>& prompt : prompts_) {
    context_.metrics.count_prompt(static_cast<std::int64_t>(prompt.size()));
  }
  context_.metrics.count_request(request_.n, request_.max_tokens);
  if (request_.stream) begin_stream();
  exchange_->on_gone([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->abandon();
  });
  if (is_cancelled_) cancel();
}

// The head goes out when the request is taken, whoever comes first.
void Completion::begin_stream() {
  std::call_once(head_sent_, [&] {
    exchange_->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                             .headers = {{"Cache-Control", "no-cache"},
                                         {"X-Accel-Buffering", "no"},
                                         {"X-Request-Id", id_}},
                             .idle_piece = ": keep-alive\n\n"});  // a comment of server-sent events
  });
}

std::vector<int> Completion::ends() const {
  std::vector<int> out = request_.stop_token_ids;
  const std::vector<int>& eos = context_.files.generation.eos_token_ids;
  if (!request_.ignore_eos) out.insert(out.end(), eos.begin(), eos.end());
  return out;
}

void Completion::make_choice(std::size_t prompt, int number) {
  auto choice = std::make_unique<Choice>();
  choice->index = static_cast<int>(prompt) * request_.n + number;
  choice->prompt = prompt;
  const auto room =
      context_.engine.max_model_len() - static_cast<std::int64_t>(prompts_[prompt].size());
  choice->stream = std::make_unique<TextStream>(
      context_.files.tokenizer,
      TextStreamOptions{.stop = request_.stop,
                        .keeps_stop = request_.include_stop_str_in_output,
                        .ends = ends(),
                        .max_tokens = std::min(request_.max_tokens, room),
                        .min_tokens = request_.min_tokens,
                        .skip_special_tokens = request_.skip_special_tokens});
  choice->served = served_for(*choice, number);
  choices_.push_back(std::move(choice));
}

std::shared_ptr<ServedRequest> Completion::served_for(Choice& choice, int number) {
  auto served = std::make_shared<ServedRequest>();
  served->prompt = prompts_[choice.prompt];
  served->max_tokens = std::max<std::int64_t>(request_.max_tokens, 1);
  served->sampling = request_.sampling;
  served->sampling.choice = static_cast<std::uint32_t>(number);
  served->sampling.ends = ends();
  if (grammar_) served->constraint = std::make_shared<grammar::GrammarConstraint>(grammar_, ends());
  served->priority = -request_.priority;
  served->salt = request_.cache_salt;
  served->deadline = deadline_;
  served->num_logprobs = request_.logprobs.value_or(-1);
  served->num_prompt_logprobs = std::max(request_.echo ? request_.logprobs.value_or(-1) : -1,
                                         request_.prompt_logprobs.value_or(-1));
  auto self = shared_from_this();
  served->on_start = [self, &choice] { self->start_choice(choice); };
  served->on_prompt = [self, &choice](const TokenLogprob& t) { self->take_prompt(choice, t); };
  served->on_token = [self, &choice](const TokenLogprob& t) { return self->take(choice, t); };
  served->on_end = [self, &choice](ServedRequest::End end, const std::string& what) {
    self->end(choice, end, what);
  };
  return served;
}

void Completion::cancel() {
  is_cancelled_ = true;
  std::vector<std::shared_ptr<ServedRequest>> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& choice : choices_) {
      if (choice->served) open.push_back(choice->served);
    }
  }
  for (const auto& served : open) context_.engine.cancel(served);
}

void Completion::cut_short() {
  {
    std::lock_guard lock(mutex_);
    never_ran_ = std::none_of(choices_.begin(), choices_.end(),
                              [](const auto& choice) { return choice->has_started; });
  }
  cancel();
}

void Completion::abandon() {
  is_abandoned_ = true;
  cancel();
}

std::vector<Completion::Progress> Completion::progress() const {
  std::lock_guard lock(mutex_);
  std::vector<Progress> out;
  for (const auto& choice : choices_) {
    if (!choice->served) continue;
    const auto prompt = static_cast<std::int64_t>(prompts_[choice->prompt].size());
    out.push_back(
        {.has_started = choice->has_started,
         .prompt_tokens = prompt,
         .tokens = choice->num_tokens,
         .max_tokens = std::min(request_.max_tokens, context_.engine.max_model_len() - prompt),
         .seconds = seconds_between(arrived_, Clock::now())});
  }
  return out;
}

void Completion::start_choice(Choice& choice) {
  std::lock_guard lock(mutex_);
  choice.started = Clock::now();
  choice.has_started = true;
  if (!choice.served) return;  // it has died with its engine, in another thread
  choice.cached_tokens = choice.served->cached_tokens;
  if (!request_.prompt_logprobs) return;
  choice.prompt_logprobs.push_back(nullptr);  // of the first token, which nothing predicts
}

void Completion::take_prompt(Choice& choice, const TokenLogprob& token) {
  std::lock_guard lock(mutex_);
  if (request_.prompt_logprobs) {
    Json told = Json::object();
    auto add = [&](int id, double logprob, std::int64_t rank) {
      told[std::to_string(id)] = {
          {"logprob", finite(logprob)}, {"rank", rank}, {"decoded_token", token_text(id)}};
    };
    auto wanted = static_cast<std::size_t>(*request_.prompt_logprobs);
    for (std::size_t i = 0; i < std::min(wanted, token.top.size()); ++i) {
      add(token.top[i].first, token.top[i].second, static_cast<std::int64_t>(i) + 1);
    }
    add(token.token, token.logprob, token.rank);
    choice.prompt_logprobs.push_back(std::move(told));
  }
  if (!request_.echo || !request_.logprobs) return;
  if (choice.delta.tokens.empty() && choice.num_tokens == 0) {
    add_logprob(choice, {.token = prompts_[choice.prompt].front()}, false);
  }
  add_logprob(choice, token, true);
}

// The prompt goes before the first token; its logprobs are there by then.
void Completion::add_echo(Choice& choice) {
  if (!request_.echo) return;
  choice.delta.text = prompt_texts_[choice.prompt];
  if (request_.logprobs && choice.delta.tokens.empty()) {  // of a single token
    add_logprob(choice, {.token = prompts_[choice.prompt].front()}, false);
  }
}

bool Completion::take(Choice& choice, const TokenLogprob& token) {
  std::lock_guard lock(mutex_);
  if (request_.max_tokens == 0) {  // the prompt alone, of which everything is known now
    add_echo(choice);
    choice.finish_reason = "length";
    return false;
  }
  const Clock::time_point now = Clock::now();
  const bool is_first = choice.num_tokens == 0;
  if (is_first) {
    choice.first_token = now;
    add_echo(choice);
  }
  context_.metrics.count_token(is_first ? -1 : seconds_between(choice.last_token, now));
  choice.last_token = now;
  choice.delta.text += choice.stream->push(token.token);
  choice.delta.token_ids.push_back(token.token);
  if (request_.logprobs) add_logprob(choice, token, true);
  ++choice.num_tokens;
  took(choice);
  using End = TextStream::End;
  const End end = choice.stream->end();
  if (end != End::kNone) {
    choice.finish_reason = end == End::kLength ? "length" : "stop";
    const std::vector<int>& stops = request_.stop_token_ids;
    const int by = choice.stream->end_token();
    if (end == End::kStop) choice.stop_reason = choice.stream->end_text();
    if (end == End::kToken && std::find(stops.begin(), stops.end(), by) != stops.end()) {
      choice.stop_reason = by;
    }
  } else if (request_.stream && has_news(choice)) {
    send_chunk(choice);
  }
  return end == End::kNone;
}

bool Completion::has_news(const Choice& choice) const {
  return !choice.delta.text.empty() || request_.logprobs || request_.return_token_ids;
}

void Completion::end(Choice& choice, ServedRequest::End end, const std::string& what) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<ServedRequest> served = std::exchange(choice.served, nullptr);
  using End = ServedRequest::End;
  const bool is_refused = end == End::kCancelled && never_ran_ && !choice.has_started;
  if (end == End::kCancelled) {
    choice.finish_reason = "abort";
    choice.delta.text += choice.stream->finish();
  }
  if (end == End::kComplete) {
    choice.finish_reason = "stop";
    choice.delta.text += choice.stream->finish();
  }
  if (choice.finish_reason.is_null()) choice.finish_reason = "length";
  const bool has_failed = is_refused || end == End::kFailed || end == End::kDied ||
                          end == End::kRefused || end == End::kLate;
  count_end(choice, *served, has_failed ? "error" : choice.finish_reason.get<std::string>());
  --num_open_;
  if (has_failed) {
    fail(is_refused ? 503 : status_of(end), is_refused ? "the server is shutting down" : what);
  } else if (request_.stream && !failed_) {
    send_chunk(choice);
  }
  if (num_open_ > 0) return;
  std::int64_t longest = 0;
  for (const auto& c : choices_) longest = std::max(longest, c->num_tokens);
  if (longest > 0) context_.metrics.count_longest(longest);
  finish();
  AnswerSummary summary{
      .status = is_abandoned_ ? kClientGone : status_, .prompt_tokens = 0, .tokens = 0};
  for (const auto& prompt : prompts_) {
    summary.prompt_tokens += static_cast<std::int64_t>(prompt.size());
  }
  for (const auto& c : choices_) summary.tokens += c->num_tokens;
  lock.unlock();
  on_done_(summary);
}

void Completion::count_end(const Choice& choice, const ServedRequest& served,
                           const std::string& reason) const {
  const Clock::time_point now = Clock::now();
  AnswerTimes times{.whole = seconds_between(arrived_, now)};
  if (choice.has_started) times.queue = seconds_between(arrived_, choice.started);
  if (choice.num_tokens > 0) {
    times.first_token = seconds_between(arrived_, choice.first_token);
    times.prefill = seconds_between(choice.started, choice.first_token);
    times.decode = seconds_between(choice.first_token, choice.last_token);
  }
  context_.metrics.count_end(reason,
                             {.prompt = static_cast<std::int64_t>(prompts_[choice.prompt].size()),
                              .generated = choice.num_tokens,
                              .cached = served.cached_tokens,
                              .preemptions = served.preemptions},
                             times);
}

// Once: the others' ends say nothing more.
void Completion::fail(int status, const std::string& what) {
  if (std::exchange(failed_, true)) return;
  status_ = status;
  ApiError error(status, what);
  if (!request_.stream) {
    HttpResponse response = error.response();
    response.headers.emplace_back("X-Request-Id", id_);
    return exchange_->respond(std::move(response));
  }
  send_event(Json::parse(error.body()));  // the status has gone out already
}

void Completion::finish() {
  if (!request_.stream) {
    if (failed_) return;
    exchange_->respond({.body = to_line(answer_json()), .headers = {{"X-Request-Id", id_}}});
    return;
  }
  if (!failed_) send_last();
  begin_stream();
  exchange_->send("data: [DONE]\n\n");
  exchange_->end();
}

void Completion::send_last() {
  if (!request_.include_usage) return;
  Json last = chunk_json();
  last["choices"] = Json::array();
  last["usage"] = usage_json();
  send_event(last);
}

Json Completion::chunk_json() const {
  return {{"id", id_},
          {"object", "text_completion"},
          {"created", created_},
          {"model", context_.model_name}};
}

std::string Completion::token_text(int token) const {
  if (request_.return_tokens_as_token_ids) return fmt::format("token_id:{}", token);
  return context_.files.tokenizer.decode({&token, 1}, false);
}

void Completion::add_logprob(Choice& choice, const TokenLogprob& token, bool has_value) {
  Delta& delta = choice.delta;
  std::string text = token_text(token.token);
  delta.offsets.push_back(choice.offset);
  // Special tokens may not be in the answer's text.
  choice.offset += num_code_points(
      context_.files.tokenizer.decode({&token.token, 1}, request_.skip_special_tokens));
  if (has_value) {
    Json top = Json::object();
    auto wanted = static_cast<std::size_t>(*request_.logprobs);
    for (std::size_t i = 0; i < std::min(wanted, token.top.size()); ++i) {
      // Of tokens with the same text the most likely one stays.
      top.emplace(token_text(token.top[i].first), finite(token.top[i].second));
    }
    top.emplace(text, finite(token.logprob));
    delta.logprobs.push_back(finite(token.logprob));
    delta.top.push_back(std::move(top));
  } else {  // docs/decisions/0039-no-null-among-logprobs.md
    delta.logprobs.push_back(0.0);
    delta.top.push_back(Json::object());
  }
  delta.tokens.push_back(std::move(text));
}

Json Completion::logprobs_json(const Delta& delta) const {
  if (!request_.logprobs) return nullptr;
  return {{"text_offset", delta.offsets},
          {"token_logprobs", delta.logprobs},
          {"tokens", delta.tokens},
          {"top_logprobs", delta.top}};
}

Json Completion::choice_json(const Choice& choice) const {
  Json out = {{"index", choice.index},
              {"text", choice.delta.text},
              {"logprobs", logprobs_json(choice.delta)},
              {"finish_reason", choice.finish_reason},
              {"stop_reason", choice.stop_reason}};
  if (request_.prompt_logprobs) out["prompt_logprobs"] = choice.prompt_logprobs;
  if (request_.return_token_ids) {
    out["token_ids"] = choice.delta.token_ids;
    out["prompt_token_ids"] = prompts_[choice.prompt];
  }
  return out;
}

// A prompt counts once, as its first choice found it.
std::int64_t Completion::cached_tokens() const {
  std::int64_t out = 0;
  for (const auto& choice : choices_) {
    if (choice->index % request_.n == 0) out += choice->cached_tokens;
  }
  return out;
}

Json Completion::usage_json() const {
  std::int64_t prompt = 0, answer = 0;
  for (const auto& ids : prompts_) prompt += static_cast<std::int64_t>(ids.size());
  for (const auto& choice : choices_) answer += choice->num_tokens;
  return {{"prompt_tokens", prompt},
          {"completion_tokens", answer},
          {"total_tokens", prompt + answer},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens()}}}};
}

Json Completion::answer_json() {
  Json choices = Json::array();
  for (const auto& choice : choices_) choices.push_back(choice_json(*choice));
  Json out = {{"id", id_},
              {"object", "text_completion"},
              {"created", created_},
              {"model", context_.model_name},
              {"choices", std::move(choices)},
              {"system_fingerprint", nullptr},
              {"usage", usage_json()}};
  if (request_.sampling.temperature > 0) out["seed"] = request_.sampling.seed;
  return out;
}

void Completion::send_chunk(Choice& choice) {
  Json json = chunk_json();
  json["choices"] = Json::array({choice_json(choice)});
  if (request_.continuous_usage_stats) {
    json["usage"] = usage_json();
  } else if (request_.include_usage) {
    json["usage"] = nullptr;
  }
  choice.delta = {};
  send_event(json);
}

void Completion::send_event(const Json& json) {
  begin_stream();
  exchange_->send("data: " + to_line(json) + "\n\n");
}

}  // namespace stretto
