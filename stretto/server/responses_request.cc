#include "stretto/server/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/json_fields.h"
#include "stretto/server/api_error.h"
#include "stretto/server/output_format.h"
#include "stretto/server/request_reader.h"

namespace stretto {
namespace {

using Ordered = nlohmann::ordered_json;

[[noreturn]] void wrong(const std::string& field, const std::string& what) {
  throw ApiError(400, field + ": " + what, field);
}

std::string text_of(const Ordered& item, const char* field, const std::string& absent) {
  auto at = item.find(field);
  if (at == item.end() || at->is_null()) return absent;
  if (!at->is_string()) wrong("input", fmt::format("{}: need a text", field));
  return at->get<std::string>();
}

// An item of the input as a message of a chat; calls join the assistant's message before them.
void add_item(const Ordered& item, Ordered& messages) {
  if (!item.is_object()) wrong("input", "need a text or a list of items");
  const std::string type = text_of(item, "type", "message");
  if (type == "message") {
    if (!item.contains("content")) wrong("input", "a message has no content");
    Ordered content = item["content"];
    messages.push_back({{"role", text_of(item, "role", "user")}, {"content", std::move(content)}});
  } else if (type == "function_call") {
    Ordered call = {
        {"id", text_of(item, "call_id", "")},
        {"type", "function"},
        {"function",
         {{"name", text_of(item, "name", "")}, {"arguments", text_of(item, "arguments", "{}")}}}};
    const bool joins = !messages.empty() && messages.back()["role"] == "assistant";
    if (!joins) messages.push_back({{"role", "assistant"}, {"content", nullptr}});
    messages.back()["tool_calls"].push_back(std::move(call));
  } else if (type == "function_call_output") {
    Ordered output = item.contains("output") ? item["output"] : Ordered("");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", text_of(item, "call_id", "")},
                        {"content", std::move(output)}});
  } else if (type != "reasoning") {  // of earlier answers: templates do without
    wrong("input", "items of type " + quote_json(type) + " are not supported");
  }
}

Ordered messages_of(const Ordered& request) {
  Ordered messages = Ordered::array();
  if (auto at = request.find("instructions"); at != request.end() && !at->is_null()) {
    if (!at->is_string()) wrong("instructions", "need a text, got " + quote_json(*at));
    messages.push_back({{"role", "system"}, {"content", *at}});
  }
  auto input = request.find("input");
  if (input == request.end()) wrong("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (!input->is_array() || input->empty()) wrong("input", "need a text or a list of items");
  for (const Ordered& item : *input) add_item(item, messages);
  return messages;
}

Ordered tools_of(const Ordered& tools) {
  if (!tools.is_array()) wrong("tools", "need a list");
  Ordered out = Ordered::array();
  for (const Ordered& tool : tools) {
    if (!tool.is_object() || !tool.contains("type") || tool["type"] != "function") {
      wrong("tools", "only tools of type 'function' are supported");
    }
    Ordered function = tool;
    function.erase("type");
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void refuse(const Json& request) {
  for (const char* field : {"previous_response_id", "conversation", "prompt"}) {
    auto at = request.find(field);
    if (at != request.end() && !at->is_null()) {
      wrong(field, "no state is kept between requests; send the whole input");
    }
  }
  const Json background = request.value("background", Json());
  if (!background.is_null() && !background.is_boolean()) wrong("background", "need true or false");
  if (background == true) wrong("background", "is not supported here");
  if (Json n = request.value("n", Json()); !n.is_null() && n != 1) {
    wrong("n", "a response has one answer");
  }
  if (Json store = request.value("store", Json()); !store.is_null() && !store.is_boolean()) {
    wrong("store", "need true or false");
  }
  for (const char* field : {"text", "reasoning"}) {
    const Json value = request.value(field, Json());
    if (!value.is_null() && !value.is_object()) wrong(field, "need an object");
  }
}

// Of a request without tools.
void check_choice_of_none(const Json& choice) {
  if (choice.is_null() || choice == "auto" || choice == "none") return;
  if (choice == "required" || choice.is_object()) wrong("tool_choice", "needs tools");
  wrong("tool_choice", "need 'auto', 'none', 'required' or an object, got " + quote_json(choice));
}

// text.format as chat's response_format.
Ordered response_format_of(const Ordered& format) {
  if (!format.is_object()) wrong("text", "format: need an object");
  auto type = format.find("type");
  if (type == format.end() || *type != "json_schema") return format;
  return {{"type", "json_schema"}, {"json_schema", format}};
}

// Fields that mean something else than in a chat request, or nothing.
bool is_own(const std::string& field) {
  static constexpr std::array kOwn = {"input",
                                      "instructions",
                                      "max_output_tokens",
                                      "max_completion_tokens",
                                      "max_tokens",
                                      "messages",
                                      "tools",
                                      "reasoning",
                                      "text",
                                      "response_format",
                                      "stream_options",
                                      "logprobs",
                                      "top_logprobs",
                                      "prompt_logprobs",
                                      "return_token_ids",
                                      "n",
                                      "prompt",
                                      "truncation"};
  return std::find(kOwn.begin(), kOwn.end(), field) != kOwn.end();
}

// FunctionTool of the API has all of these.
Json told_tools(const Json& tools) {
  Json out = Json::array();
  for (Json tool : tools) {
    for (const char* field : {"description", "parameters", "strict"}) {
      if (!tool.contains(field)) tool[field] = nullptr;
    }
    out.push_back(std::move(tool));
  }
  return out;
}

}  // namespace

ApiError in_words_of_responses(const ApiError& error) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"messages", "input"},
      {"max_completion_tokens", "max_output_tokens"},
      {"response_format", "text"},
      {"reasoning_effort", "reasoning"}};
  for (const auto& [chat, name] : kNames) {
    if (error.param() != chat) continue;
    std::string message = error.what();
    if (auto at = message.find(chat); at != message.npos) message.replace(at, chat.size(), name);
    return ApiError(error.status(), message, std::string(name));
  }
  return error;
}

ResponsesRequest parse_responses_request(std::string_view body, const SamplingDefaults& defaults,
                                         int vocab_size) {
  const Json json = request_object(body);
  const Ordered request = in_order(json, body);
  refuse(json);
  Ordered chat = {{"messages", messages_of(request)}};
  for (const auto& [field, value] : request.items()) {
    if (!is_own(field)) chat[field] = value;  // counts as it does there
  }
  if (auto at = request.find("max_output_tokens"); at != request.end()) {
    chat["max_completion_tokens"] = *at;
  }
  auto tools = request.find("tools");
  const bool has_tools =
      tools != request.end() && !tools->is_null() && !(tools->is_array() && tools->empty());
  if (has_tools) {
    chat["tools"] = tools_of(*tools);
  } else {
    check_choice_of_none(json.value("tool_choice", Json()));
    chat.erase("tool_choice");
  }
  if (auto at = request.find("reasoning");
      at != request.end() && at->is_object() && at->contains("effort")) {
    chat["reasoning_effort"] = (*at)["effort"];
  }
  Json text_format = {{"type", "text"}};
  if (auto text = request.find("text");
      text != request.end() && text->is_object() && text->contains("format")) {
    text_format = (*text)["format"];
    chat["response_format"] = response_format_of((*text)["format"]);
  }
  ResponsesRequest out{.chat = parse_chat_request(chat.dump(), defaults, vocab_size),
                       .asked = Json::object()};
  const SamplingParams& sampling = out.chat.completion.sampling;
  out.asked = {{"instructions", json.value("instructions", Json())},
               {"max_output_tokens", json.value("max_output_tokens", Json())},
               {"metadata", json.value("metadata", Json())},
               {"parallel_tool_calls", out.chat.parallel_tool_calls},
               {"tool_choice", has_tools ? json.value("tool_choice", Json("auto")) : Json("auto")},
               {"tools", has_tools ? told_tools(json["tools"]) : Json::array()},
               {"temperature", sampling.temperature},
               {"top_p", sampling.top_p},
               {"text", {{"format", std::move(text_format)}}},
               {"truncation", "disabled"},
               {"reasoning", json.value("reasoning", Json())},
               {"store", false}};
  return out;
}

}  // namespace stretto
