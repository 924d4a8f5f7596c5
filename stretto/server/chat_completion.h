// The answer to one chat request: a completion of the rendered conversation, told in chat's form.
// After chat_request.h; completion.h does the work.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/server/chat_output.h"
#include "stretto/server/chat_request.h"
#include "stretto/server/completion.h"

namespace stretto {

// How a server's model is talked with.
struct ChatOptions {
  std::string template_file;     // --chat-template
  std::string tool_parser;       // --tool-call-parser; "": by the template
  std::string reasoning_parser;  // --reasoning-parser; "": by the template
};

// A server's templates and parsers.
class ChatModel {
 public:
  // UserError for options that are wrong.
  ChatModel(const std::filesystem::path& directory, const ChatOptions& options);

  // The prompt. ApiError 400 with the template's line.
  ChatPrompt render(const ChatRequest& request, const Tokenizer& tokenizer,
                    const CheckText& check = {}) const;
  // "" where there is a template, else why there is none.
  const std::string& missing() const { return templates_.missing(); }
  ToolFormat tool_format() const { return tool_format_; }
  bool has_reasoning() const { return has_reasoning_; }
  // What the answer has to look like; nothing where any text will do.
  std::optional<OutputFormat> format(const ChatRequest& request, bool begins_in_reasoning) const;
  // One line for the log at the start.
  std::string describe() const;

 private:
  static ChatPrompt continued(ChatPrompt prompt, const ChatRequest& request,
                              const Tokenizer& tokenizer);

  ChatTemplates templates_;
  ToolFormat tool_format_ = ToolFormat::kNone;
  bool has_reasoning_ = false;
  bool names_arguments_ = false;  // [ARGS] of Mistral's later models
};

// An id for a call: Mistral's templates take nine letters and nothing else.
std::string drawn_call_id(ToolFormat format);

class ChatCompletion : public Completion {
 public:
  ChatCompletion(const AnswerContext& context, std::string id, const ChatModel& model,
                 ChatRequest request, std::shared_ptr<HttpExchange> exchange, OnDone on_done);

 protected:
  struct Answer {  // of one choice
    explicit Answer(const ChatOutput::Options& options) : output(options) {}
    ChatOutput output;
    Json logprobs = Json::array();
    ChatDelta news;  // not told yet
    int num_calls = 0, num_seen = 0;  // told, and those that are not
    std::int64_t num_reasoning = 0;  // tokens
    bool has_begun = false;
  };

  void start_choice(Choice& choice) override;
  void took(Choice& choice) override;
  bool has_news(const Choice& choice) const override;
  void add_logprob(Choice& choice, const TokenLogprob& token, bool has_value) override;
  Json answer_json() override;
  Json usage_json() const override;
  void send_chunk(Choice& choice) override;
  Json chunk_json() const override;

  Answer& answer_of(const Choice& choice) const {
    return *answers_[static_cast<std::size_t>(choice.index)];
  }
  // What is certain and not told yet; everything at the choice's end.
  ChatDelta take_delta(Choice& choice);
  Json calls_json(Answer& answer, const std::vector<ToolCall>& calls, bool is_chunk) const;
  Json finish_reason(const Choice& choice);
  Json alternative(int token, double logprob) const;
  void send_delta(const Choice& choice, Json delta, Json logprobs, const Json& finish_reason);

  ToolFormat tool_format_;
  bool only_one_call_, include_reasoning_;
  std::vector<std::unique_ptr<Answer>> answers_;  // by index
};

}  // namespace stretto
