#include "stretto/server/chat_completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/server/api_error.h"

namespace stretto {
namespace {

constexpr const char* kFormats[] = {"none", "hermes", "llama3", "mistral"};

std::string drawn_letters(std::size_t count) {
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += kLetters[random() % kLetters.size()];
  return out;
}

bool opens_reasoning(std::string_view prompt) {
  while (!prompt.empty() && std::string_view(" \t\r\n").find(prompt.back()) != prompt.npos) {
    prompt.remove_suffix(1);
  }
  return prompt.ends_with("<think>");
}

}  // namespace

std::string drawn_call_id(ToolFormat format) {
  return format == ToolFormat::kMistral ? drawn_letters(9) : "call_" + drawn_letters(24);
}

ChatModel::ChatModel(const std::filesystem::path& directory, const ChatOptions& options)
    : templates_(ChatTemplates::load(directory, options.template_file)) {
  for (const auto& [name, source] : templates_.sources()) {
    if (tool_format_ == ToolFormat::kNone) tool_format_ = tool_format_of_template(source);
    has_reasoning_ |= source.find("<think>") != source.npos;
    names_arguments_ |= source.find("[ARGS]") != source.npos;
  }
  if (!options.tool_parser.empty()) {
    auto format = options.tool_parser == "none" ? std::optional(ToolFormat::kNone)
                                                : tool_format_named(options.tool_parser);
    if (!format) {
      throw UserError(
          fmt::format("--tool-call-parser: need hermes, llama3, mistral or none, got '{}'",
                      options.tool_parser));
    }
    tool_format_ = *format;
  }
  if (!options.reasoning_parser.empty()) {
    if (options.reasoning_parser != "think" && options.reasoning_parser != "none") {
      throw UserError(fmt::format("--reasoning-parser: need think or none, got '{}'",
                                  options.reasoning_parser));
    }
    has_reasoning_ = options.reasoning_parser == "think";
  }
}

std::string ChatModel::describe() const {
  if (!templates_.missing().empty()) return "chat: " + templates_.missing();
  const std::string calls =
      tool_format_ != ToolFormat::kNone
          ? fmt::format("calls of tools as {}", kFormats[static_cast<std::size_t>(tool_format_)])
          : "tools refused (the template has no calls of a known form; --tool-call-parser names "
            "one)";
  return fmt::format("chat: {}, reasoning {}", calls,
                     has_reasoning_ ? "between <think> and </think>" : "not told apart");
}

ChatPrompt ChatModel::render(const ChatRequest& request, const Tokenizer& tokenizer,
                             const CheckText& check) const {
  ChatVariables variables = templates_.special_tokens();
  variables.insert(variables.end(), request.variables.begin(), request.variables.end());
  if (!request.has_tools) variables.emplace_back("tools", jinja::Value::none());
  const bool is_own = !request.template_text.empty();
  try {
    const jinja::Template chosen =
        is_own ? jinja::Template::parse(request.template_text, "chat_template")
               : templates_.choose(request.template_name, request.has_tools);
    if (request.has_tools && tool_format_ == ToolFormat::kNone) {
      throw ApiError(400,
                     "tools: it is not known how this model writes calls; start the server with "
                     "--tool-call-parser hermes, llama3 or mistral",
                     "tools");
    }
    ChatPrompt prompt =
        render_chat(chosen, variables, tokenizer, request.completion.add_special_tokens, check);
    if (!request.continue_final_message) return prompt;
    return continued(std::move(prompt), request, tokenizer);
  } catch (const ApiError&) {
    throw;
  } catch (const UserError& e) {
    throw ApiError(400, e.what(),
                   is_own || !request.template_name.empty() ? "chat_template" : "messages");
  }
}

std::optional<OutputFormat> ChatModel::format(const ChatRequest& request,
                                              bool begins_in_reasoning) const {
  std::optional<OutputFormat> out = request.completion.format;
  if (request.must_call) {
    out = OutputFormat{.field = "tools", .asked = {.kind = grammar::Asked::Kind::kCalls}};
  }
  if (request.has_strict_tools) {
    out = OutputFormat{.field = "tools", .asked = {.kind = grammar::Asked::Kind::kFree}};
  }
  if (!out) return out;
  using Thinking = grammar::Asked::Thinking;
  if (has_reasoning_) {
    out->asked.thinking = begins_in_reasoning ? Thinking::kOpen : Thinking::kMay;
  }
  if (request.tools.empty()) return out;
  grammar::AskedCalls& calls = out->asked.calls;
  calls = form_of_calls(tool_format_, names_arguments_);
  calls.tools = request.tools;
  calls.only_one = request.only_one_call;
  return out;
}

// Cuts off what the template puts behind the final message.
ChatPrompt ChatModel::continued(ChatPrompt prompt, const ChatRequest& request,
                                const Tokenizer& tokenizer) {
  std::string last = request.last_text;
  std::size_t at = prompt.text.rfind(last);
  if (at == std::string::npos) {  // a template may strip it
    last.erase(last.find_last_not_of(" \t\r\n") + 1);
    last.erase(0, std::min(last.find_first_not_of(" \t\r\n"), last.size()));
    at = prompt.text.rfind(last);
  }
  if (at == std::string::npos) {
    throw ApiError(400, "continue_final_message: the template does not print the final message",
                   "continue_final_message");
  }
  const std::size_t size = at + last.size();
  ChatPrompt out;
  EncodeOptions options{.add_special_tokens = request.completion.add_special_tokens};
  for (jinja::Piece& piece : prompt.pieces) {
    if (out.text.size() >= size) break;
    piece.text.resize(std::min(piece.text.size(), size - out.text.size()));
    const std::size_t begin = out.text.size();
    out.text += piece.text;
    if (piece.is_user) options.plain_ranges.emplace_back(begin, out.text.size());
    out.pieces.push_back(std::move(piece));
  }
  out.ids = tokenizer.encode(out.text, options);
  return out;
}

namespace {

// The request as a completion of the rendered text.
CompletionRequest as_completion(const AnswerContext& context, const ChatModel& model,
                                const ChatRequest& request, bool& begins_in_reasoning) {
  CheckText check = [&](std::size_t bytes) { context.check_room(bytes, "messages"); };
  if (request.completion.truncate_prompt_tokens) check = {};  // the last ones fit
  ChatPrompt prompt = model.render(request, context.files.tokenizer, check);
  begins_in_reasoning = opens_reasoning(prompt.text);
  CompletionRequest out = request.completion;
  const auto size = static_cast<std::int64_t>(prompt.ids.size());
  out.max_tokens =
      request.max_tokens.value_or(std::max<std::int64_t>(context.engine.max_model_len() - size, 1));
  // Tags that are special tokens are read, not skipped.
  if (request.has_tools) out.skip_special_tokens = false;
  out.prompts.emplace_back(std::move(prompt.ids));
  out.format = model.format(request, begins_in_reasoning);
  return out;
}

}  // namespace

ChatCompletion::ChatCompletion(const AnswerContext& context, std::string id, const ChatModel& model,
                               ChatRequest request, std::shared_ptr<HttpExchange> exchange,
                               OnDone on_done)
    : Completion(context, std::move(id), {}, std::move(exchange), std::move(on_done)),
      tool_format_(request.has_tools ? model.tool_format() : ToolFormat::kNone),
      only_one_call_(request.only_one_call),
      include_reasoning_(request.include_reasoning) {
  prompt_field_ = "messages";
  bool begins_in_reasoning = false;
  const std::uint64_t drawn = request_.sampling.seed;
  request_ = as_completion(context, model, request, begins_in_reasoning);
  if (!request_.has_seed) request_.sampling.seed = drawn;
  const ChatOutput::Options options{.tools = tool_format_,
                                    .has_reasoning = model.has_reasoning(),
                                    .begins_in_reasoning = begins_in_reasoning,
                                    .must_call = request.must_call};
  for (int i = 0; i < request_.n; ++i) answers_.push_back(std::make_unique<Answer>(options));
}

Json ChatCompletion::chunk_json() const {
  Json out = Completion::chunk_json();
  out["object"] = "chat.completion.chunk";
  out["system_fingerprint"] = nullptr;
  return out;
}

void ChatCompletion::start_choice(Choice& choice) {
  Completion::start_choice(choice);
  std::lock_guard lock(mutex_);
  if (!request_.stream || std::exchange(answer_of(choice).has_begun, true)) return;
  send_delta(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
}

Json ChatCompletion::alternative(int token, double logprob) const {
  const std::string bytes = context_.files.tokenizer.decode({&token, 1}, false);
  Json list = Json::array();
  for (char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", token_text(token)},
          {"logprob", std::max(logprob, -9999.0)},
          {"bytes", std::move(list)}};
}

void ChatCompletion::add_logprob(Choice& choice, const TokenLogprob& token, bool) {
  Json entry = alternative(token.token, token.logprob);
  Json top = Json::array();
  auto wanted = static_cast<std::size_t>(*request_.logprobs);
  for (std::size_t i = 0; i < std::min(wanted, token.top.size()); ++i) {
    top.push_back(alternative(token.top[i].first, token.top[i].second));
  }
  entry["top_logprobs"] = std::move(top);
  answer_of(choice).logprobs.push_back(std::move(entry));
}

void ChatCompletion::took(Choice& choice) {
  Answer& answer = answer_of(choice);
  const bool was_reasoning = answer.output.in_reasoning();
  answer.news.add(answer.output.push(std::exchange(choice.delta.text, {})));
  if (was_reasoning || answer.output.in_reasoning()) ++answer.num_reasoning;
}

bool ChatCompletion::has_news(const Choice& choice) const {
  return !answer_of(choice).news.empty() || request_.logprobs || request_.return_token_ids;
}

ChatDelta ChatCompletion::take_delta(Choice& choice) {
  Answer& answer = answer_of(choice);
  ChatDelta out = std::exchange(answer.news, {});
  if (!choice.finish_reason.is_null()) {
    out.add(answer.output.push(std::exchange(choice.delta.text, {})));
    out.add(answer.output.finish());
  }
  std::erase_if(out.calls, [&](const ToolCall& call) {
    answer.num_seen += call.goes_on ? 0 : 1;
    return only_one_call_ && answer.num_seen > 1;  // the first one counts
  });
  if (!include_reasoning_) out.reasoning.clear();
  return out;
}

Json ChatCompletion::calls_json(Answer& answer, const std::vector<ToolCall>& calls,
                                bool is_chunk) const {
  Json out = Json::array();
  for (const ToolCall& call : calls) {
    if (call.goes_on) {
      out.push_back(
          {{"index", answer.num_calls - 1}, {"function", {{"arguments", call.arguments}}}});
      continue;
    }
    Json one = {{"id", drawn_call_id(tool_format_)},
                {"type", "function"},
                {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
    if (is_chunk) one["index"] = answer.num_calls;
    ++answer.num_calls;
    out.push_back(std::move(one));
  }
  return out;
}

Json ChatCompletion::finish_reason(const Choice& choice) {
  if (choice.finish_reason == "stop" && answer_of(choice).num_calls > 0) return "tool_calls";
  return choice.finish_reason;
}

void ChatCompletion::send_delta(const Choice& choice, Json delta, Json logprobs,
                                const Json& finish_reason) {
  Json json = chunk_json();
  Json told = {{"index", choice.index},
               {"delta", std::move(delta)},
               {"logprobs", std::move(logprobs)},
               {"finish_reason", finish_reason}};
  if (!finish_reason.is_null()) told["stop_reason"] = choice.stop_reason;
  if (request_.return_token_ids) {
    told["token_ids"] = choice.delta.token_ids;
    json["prompt_token_ids"] = prompts_[choice.prompt];
  }
  json["choices"] = Json::array({std::move(told)});
  if (request_.continuous_usage_stats) {
    json["usage"] = usage_json();
  } else if (request_.include_usage) {
    json["usage"] = nullptr;
  }
  send_event(json);
}

void ChatCompletion::send_chunk(Choice& choice) {
  Answer& answer = answer_of(choice);
  if (!std::exchange(answer.has_begun, true)) {
    send_delta(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
  }
  ChatDelta delta = take_delta(choice);
  Json told = Json::object();
  if (!delta.reasoning.empty()) told["reasoning"] = told["reasoning_content"] = delta.reasoning;
  if (!delta.content.empty()) told["content"] = delta.content;
  if (!delta.calls.empty()) told["tool_calls"] = calls_json(answer, delta.calls, true);
  Json logprobs = nullptr;
  if (request_.logprobs) {
    logprobs = {{"content", std::exchange(answer.logprobs, Json::array())}, {"refusal", nullptr}};
  }
  send_delta(choice, std::move(told), std::move(logprobs), finish_reason(choice));
  choice.delta = {};
}

Json ChatCompletion::usage_json() const {
  Json out = Completion::usage_json();
  std::int64_t reasoning = 0;
  for (const auto& answer : answers_) reasoning += answer->num_reasoning;
  out["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
  return out;
}

Json ChatCompletion::answer_json() {
  Json choices = Json::array();
  for (const auto& held : choices_) {
    Choice& choice = *held;
    Answer& answer = answer_of(choice);
    ChatDelta whole = take_delta(choice);
    Json message = {{"role", "assistant"}, {"content", whole.content}, {"refusal", nullptr}};
    if (!whole.reasoning.empty())
      message["reasoning"] = message["reasoning_content"] = whole.reasoning;
    if (!whole.calls.empty()) {
      message["tool_calls"] = calls_json(answer, whole.calls, false);
      if (whole.content.empty()) message["content"] = nullptr;
    }
    Json one = {{"index", choice.index},
                {"message", std::move(message)},
                {"logprobs", nullptr},
                {"finish_reason", finish_reason(choice)},
                {"stop_reason", choice.stop_reason}};
    if (request_.logprobs) one["logprobs"] = {{"content", answer.logprobs}, {"refusal", nullptr}};
    if (request_.return_token_ids) one["token_ids"] = choice.delta.token_ids;
    choices.push_back(std::move(one));
  }
  Json out = chunk_json();
  out["object"] = "chat.completion";
  out["choices"] = std::move(choices);
  out["usage"] = usage_json();
  out["service_tier"] = nullptr;
  if (request_.return_token_ids) out["prompt_token_ids"] = prompts_.front();
  if (request_.prompt_logprobs) out["prompt_logprobs"] = choices_.front()->prompt_logprobs;
  if (request_.sampling.temperature > 0) out["seed"] = request_.sampling.seed;
  return out;
}

}  // namespace stretto
