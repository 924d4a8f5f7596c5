#include "stretto/server/responses.h"

#include <fmt/format.h>

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
  if (auto at = request.find("instructions"); at != request.end() && at->is_string()) {
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
  if (request.value("background", Json(false)) == true)
    wrong("background", "is not supported here");
  if (Json store = request.value("store", Json()); !store.is_null() && !store.is_boolean()) {
    wrong("store", "need true or false");
  }
  Json text = request.value("text", Json());
  if (!text.is_null() && !text.is_object()) wrong("text", "need an object");
}

// text.format as chat's response_format.
Ordered response_format_of(const Ordered& format) {
  if (!format.is_object()) wrong("text", "format: need an object");
  auto type = format.find("type");
  if (type == format.end() || *type != "json_schema") return format;
  return {{"type", "json_schema"}, {"json_schema", format}};
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

ResponsesRequest parse_responses_request(std::string_view body, const SamplingDefaults& defaults,
                                         int vocab_size) {
  const Json json = request_object(body);
  const Ordered request = in_order(json, body);
  refuse(json);
  Ordered chat = {{"messages", messages_of(request)}};
  static constexpr std::pair<const char*, const char*> kSame[] = {
      {"model", "model"},
      {"max_output_tokens", "max_completion_tokens"},
      {"temperature", "temperature"},
      {"top_p", "top_p"},
      {"stream", "stream"},
      {"tool_choice", "tool_choice"},
      {"seed", "seed"},
      {"parallel_tool_calls", "parallel_tool_calls"},
      {"top_k", "top_k"},
      {"chat_template_kwargs", "chat_template_kwargs"}};
  for (const auto& [from, to] : kSame) {
    if (auto at = request.find(from); at != request.end()) chat[to] = *at;
  }
  auto tools = request.find("tools");
  const bool has_tools =
      tools != request.end() && !tools->is_null() && !(tools->is_array() && tools->empty());
  if (has_tools) {
    chat["tools"] = tools_of(*tools);
  } else {
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

ResponsesCompletion::ResponsesCompletion(const AnswerContext& context, std::string id,
                                         const ChatModel& model, ResponsesRequest request,
                                         std::shared_ptr<HttpExchange> exchange, OnDone on_done)
    : ChatCompletion(context, std::move(id), model, std::move(request.chat), std::move(exchange),
                     std::move(on_done)),
      asked_(std::move(request.asked)) {
  prompt_field_ = "input";
}

Json ResponsesCompletion::response_json(const char* status, const Json& finish_reason) {
  Json out = asked_;
  out["id"] = id_;
  out["object"] = "response";
  out["created_at"] = created_;
  out["model"] = context_.model_name;
  out["status"] = status;
  out["error"] = nullptr;
  out["incomplete_details"] = nullptr;
  out["output"] = output_;
  out["usage"] = nullptr;
  if (finish_reason.is_null()) return out;
  if (std::string_view(status) == "incomplete") {
    out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  Json usage = usage_json();
  out["usage"] = {{"input_tokens", usage["prompt_tokens"]},
                  {"input_tokens_details", {{"cached_tokens", 0}, {"cache_write_tokens", 0}}},
                  {"output_tokens", usage["completion_tokens"]},
                  {"output_tokens_details", usage["completion_tokens_details"]},
                  {"total_tokens", usage["total_tokens"]}};
  return out;
}

void ResponsesCompletion::send_event(const Json& json) {
  if (json.contains("error") && !json.contains("type")) {  // of a failure, in chat's form
    return emit("error",
                {{"message", json["error"]["message"]}, {"code", nullptr}, {"param", nullptr}});
  }
  begin_stream();
  exchange_->send(
      fmt::format("event: {}\ndata: {}\n\n", json["type"].get<std::string>(), to_line(json)));
}

void ResponsesCompletion::emit(const char* type, Json event) {
  if (!request_.stream) return;
  event["type"] = type;
  event["sequence_number"] = sequence_number_++;
  send_event(event);
}

void ResponsesCompletion::begin() {
  if (std::exchange(has_begun_, true)) return;
  emit("response.created", {{"response", response_json("in_progress", nullptr)}});
  emit("response.in_progress", {{"response", response_json("in_progress", nullptr)}});
}

void ResponsesCompletion::start_choice(Choice& choice) {
  Completion::start_choice(choice);
  std::lock_guard lock(mutex_);
  begin();
}

Json ResponsesCompletion::part(const std::string& text) const {
  if (open_ == Open::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ResponsesCompletion::item_json(const char* status) const {
  if (open_ == Open::kCall) {
    return {{"type", "function_call"}, {"id", item_id_},          {"call_id", call_id_},
            {"name", call_name_},      {"arguments", item_text_}, {"status", status}};
  }
  Json content = Json::array();
  if (std::string_view(status) != "in_progress") content.push_back(part(item_text_));
  if (open_ == Open::kReasoning) {
    return {{"type", "reasoning"},
            {"id", item_id_},
            {"summary", Json::array()},
            {"content", content},
            {"status", status}};
  }
  return {{"type", "message"},
          {"id", item_id_},
          {"role", "assistant"},
          {"content", content},
          {"status", status}};
}

void ResponsesCompletion::open_item(Open sort) {
  if (open_ == sort) return;
  close_item(true);
  open_ = sort;
  item_id_ =
      fmt::format("{}_{}_{}", sort == Open::kReasoning ? "rs" : "msg", id_.substr(5), num_items_);
  item_text_.clear();
  emit("response.output_item.added",
       {{"output_index", num_items_}, {"item", item_json("in_progress")}});
  emit("response.content_part.added", {{"output_index", num_items_},
                                       {"item_id", item_id_},
                                       {"content_index", 0},
                                       {"part", part("")}});
}

// What ends the deltas of the open item.
void ResponsesCompletion::end_text() {
  Json place = {{"output_index", num_items_}, {"item_id", item_id_}};
  if (open_ == Open::kCall) {
    place["name"] = call_name_;
    place["arguments"] = item_text_;
    return emit("response.function_call_arguments.done", place);
  }
  place["content_index"] = 0;
  Json done = place;
  done["text"] = item_text_;
  if (open_ == Open::kMessage) done["logprobs"] = Json::array();
  emit(open_ == Open::kReasoning ? "response.reasoning_text.done" : "response.output_text.done",
       done);
  place["part"] = part(item_text_);
  emit("response.content_part.done", place);
}

void ResponsesCompletion::close_item(bool is_complete) {
  if (open_ == Open::kNone) return;
  end_text();
  Json item = item_json(is_complete ? "completed" : "incomplete");
  emit("response.output_item.done", {{"output_index", num_items_}, {"item", item}});
  output_.push_back(std::move(item));
  open_ = Open::kNone;
  ++num_items_;
}

void ResponsesCompletion::add_text(Open sort, const std::string& text) {
  if (text.empty()) return;
  open_item(sort);
  item_text_ += text;
  Json event = {
      {"output_index", num_items_}, {"item_id", item_id_}, {"content_index", 0}, {"delta", text}};
  if (sort == Open::kMessage) event["logprobs"] = Json::array();
  emit(sort == Open::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
       event);
}

void ResponsesCompletion::add_call(const ToolCall& call) {
  if (!call.goes_on) {
    close_item(true);
    open_ = Open::kCall;
    item_id_ = fmt::format("fc_{}_{}", id_.substr(5), num_items_);
    item_text_.clear();
    call_id_ = drawn_call_id(tool_format_);
    call_name_ = call.name;
    emit("response.output_item.added",
         {{"output_index", num_items_}, {"item", item_json("in_progress")}});
  }
  item_text_ += call.arguments;
  emit("response.function_call_arguments.delta",
       {{"output_index", num_items_}, {"item_id", item_id_}, {"delta", call.arguments}});
}

void ResponsesCompletion::send_chunk(Choice& choice) {
  begin();
  ChatDelta delta = take_delta(choice);
  add_text(Open::kReasoning, delta.reasoning);
  add_text(Open::kMessage, delta.content);
  for (const ToolCall& call : delta.calls) add_call(call);
  choice.delta = {};
  if (choice.finish_reason.is_null()) return;
  const bool is_complete = choice.finish_reason == "stop";
  if (output_.empty() && open_ == Open::kNone) open_item(Open::kMessage);  // an empty answer is one
  close_item(is_complete);
  emit(is_complete ? "response.completed" : "response.incomplete",
       {{"response",
         response_json(is_complete ? "completed" : "incomplete", choice.finish_reason)}});
}

Json ResponsesCompletion::answer_json() {
  Choice& choice = *choices_.front();
  send_chunk(choice);  // which makes the items, and sends nothing
  const char* status = choice.finish_reason == "stop" ? "completed" : "incomplete";
  return response_json(status, choice.finish_reason);
}

}  // namespace stretto
