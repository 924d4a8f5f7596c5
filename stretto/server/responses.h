// The answer to POST /v1/responses: items, whole or as events. After chat_completion.h and
// responses_request.h.
#pragma once

#include <memory>
#include <string>

#include "stretto/server/chat_completion.h"
#include "stretto/server/responses_request.h"

namespace stretto {

class ResponsesCompletion : public ChatCompletion {
 public:
  ResponsesCompletion(const AnswerContext& context, std::string id, const ChatModel& model,
                      ResponsesRequest request, std::shared_ptr<HttpExchange> exchange,
                      OnDone on_done);

 protected:
  void start_choice(Choice& choice) override;
  Json answer_json() override;
  void send_chunk(Choice& choice) override;
  void send_last() override {}
  void send_event(const Json& json) override;

 private:
  enum class Open : std::uint8_t { kNone, kReasoning, kMessage, kCall };

  void begin();
  void emit(const char* type, Json event);
  void open_item(Open sort);
  void end_text();
  void close_item(bool is_complete);
  void add_text(Open sort, const std::string& text);
  void add_call(const ToolCall& call);
  Json part(const std::string& text) const;
  Json item_json(const char* status) const;
  Json response_json(const char* status, const Json& finish_reason);

  Json asked_;
  Json output_ = Json::array();  // items that are complete
  Open open_ = Open::kNone;
  std::string item_id_, item_text_, call_id_, call_name_;
  int sequence_number_ = 0, num_items_ = 0;
  bool has_begun_ = false;
};

}  // namespace stretto
