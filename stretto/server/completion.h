// The answer to one completion request: its choices go to the engine, their tokens come back and
// become text, and the client gets JSON at the end or server-sent events on the way. After
// completion_request.h, before http.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/engine/serving.h"
#include "stretto/engine/text_stream.h"
#include "stretto/server/completion_request.h"
#include "stretto/server/http.h"
#include "stretto/server/metrics.h"
#include "stretto/server/output_grammars.h"

namespace stretto {

// What all answers of a server share. Outlives them.
struct AnswerContext {
  const ModelFiles& files;
  ServingEngine& engine;
  Metrics& metrics;
  OutputGrammars& grammars;
  std::string model_name;
  // Of a text that one token may stand for (Tokenizer::most_text_of_a_token).
  std::optional<std::size_t> most_token_bytes = {};

  // Of a text that is to be a prompt: ApiError where it cannot fit, whatever tokens come of it.
  void check_room(std::size_t text_bytes, const char* field) const;
};

inline constexpr int kClientGone = 499;  // as nginx has it in its logs

// What became of a request, for the access log.
struct AnswerSummary {
  int status = 200;  // kClientGone: nobody is there to hear of the end
  std::int64_t prompt_tokens = 0, tokens = 0;
};

// Of /v1/completions; chat_completion.h says the same in chat's form.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  using OnDone = std::function<void(const AnswerSummary&)>;  // once, on any thread

  Completion(const AnswerContext& context, std::string id, CompletionRequest request,
             std::shared_ptr<HttpExchange> exchange, OnDone on_done);
  virtual ~Completion() = default;

  // Whether start() has to make a grammar, which takes up to seconds.
  bool needs_new_grammar();
  // Tokenizes, checks and hands the choices to the engine. ApiError where one cannot be taken; then
  // none runs, and nothing has been answered. `require_wanted` is called between two pieces of that
  // work, and throws where nobody waits for it any more.
  void start(std::chrono::steady_clock::time_point arrived,
             std::optional<std::chrono::steady_clock::time_point> deadline,
             const std::function<void()>& require_wanted);
  // From any thread: all choices end, what there is is sent. Before start(): as soon as they have
  // begun.
  void cancel();
  // The same at the end of the server. Where no choice has begun, the client is to come again: 503.
  void cut_short();
  // As cancel() for a client that has gone.
  void abandon();
  // Of each choice that has not ended. From any thread.
  struct Progress {
    bool has_started = false;
    std::int64_t prompt_tokens = 0, tokens = 0, max_tokens = 0;
    double seconds = 0;  // since the request came
  };
  std::vector<Progress> progress() const;

 protected:
  using Clock = std::chrono::steady_clock;

  // What a chunk, or at the end the whole answer, has of a choice.
  struct Delta {
    std::string text;
    std::vector<int> token_ids;
    std::vector<std::string> tokens;  // of logprobs, with ...
    std::vector<double> logprobs;     // ... 0 for the first token of a prompt
    std::vector<Json> top;
    std::vector<std::int64_t> offsets;  // in code points
  };
  struct Choice {
    int index = 0;
    std::size_t prompt = 0;  // of prompts_
    std::shared_ptr<ServedRequest> served;
    std::unique_ptr<TextStream> stream;
    Delta delta;
    Json prompt_logprobs = Json::array();
    std::int64_t offset = 0, num_tokens = 0;
    std::int64_t cached_tokens = 0;  // of its prompt, found in the cache
    Json finish_reason = nullptr, stop_reason = nullptr;
    Clock::time_point started, first_token, last_token;
    bool has_started = false;
  };

  std::vector<int> tokenize(const CompletionRequest::Prompt& prompt) const;
  void make_choice(std::size_t prompt, int number);
  std::shared_ptr<ServedRequest> served_for(Choice& choice, int number);
  void begin_stream();
  std::vector<int> ends() const;

  // On the engine's thread, or, of a choice that waits, on that of cancel().
  virtual void start_choice(Choice& choice);
  void take_prompt(Choice& choice, const TokenLogprob& token);
  bool take(Choice& choice, const TokenLogprob& token);
  void end(Choice& choice, ServedRequest::End end, const std::string& what);
  void finish();
  void fail(int status, const std::string& what);

  // After each token, whose text is in the delta.
  virtual void took(Choice&) {}
  // Whether a stream has something to send.
  virtual bool has_news(const Choice& choice) const;
  virtual void add_logprob(Choice& choice, const TokenLogprob& token, bool has_value);
  void add_echo(Choice& choice);
  std::string token_text(int token) const;
  Json logprobs_json(const Delta& delta) const;
  Json choice_json(const Choice& choice) const;
  virtual Json answer_json();
  virtual Json usage_json() const;
  std::int64_t cached_tokens() const;
  // What the choice has since the last one; its finish_reason is null but for the last.
  virtual void send_chunk(Choice& choice);
  // "text_completion" with whatever each chunk has.
  virtual Json chunk_json() const;
  // After the last chunk of a stream.
  virtual void send_last();
  virtual void send_event(const Json& json);
  void count_end(const Choice& choice, const ServedRequest& served,
                 const std::string& reason) const;

  const AnswerContext& context_;
  std::string id_;
  CompletionRequest request_;
  std::shared_ptr<const grammar::Grammar> grammar_;  // null: any text
  std::shared_ptr<HttpExchange> exchange_;
  OnDone on_done_;
  std::int64_t created_;
  Clock::time_point arrived_;
  std::optional<Clock::time_point> deadline_;
  const char* prompt_field_ = "prompt";  // what a prompt that is too long is blamed on
  std::once_flag head_sent_;
  mutable std::mutex mutex_;  // of what follows, once the engine has the choices
  std::vector<std::vector<int>> prompts_;
  std::vector<std::string> prompt_texts_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::size_t num_open_ = 0;  // choices that have not ended
  bool failed_ = false;       // and the client has been told
  bool never_ran_ = false;    // before the server's end
  int status_ = 200;
  std::atomic<bool> is_cancelled_{false}, is_abandoned_{false};
};

}  // namespace stretto
