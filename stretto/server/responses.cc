#include "stretto/server/responses.h"

#include <fmt/format.h>

#include <utility>

namespace stretto {

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
  out["usage"] = {
      {"input_tokens", usage["prompt_tokens"]},
      {"input_tokens_details", {{"cached_tokens", cached_tokens()}, {"cache_write_tokens", 0}}},
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
