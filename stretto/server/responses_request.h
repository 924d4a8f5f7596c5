// POST /v1/responses as it was asked: a chat request in another form, without state between
// requests. docs/guide/serving.md lists the fields.
#pragma once

#include <string_view>

#include "stretto/base/json.h"
#include "stretto/server/api_error.h"
#include "stretto/server/chat_request.h"

namespace stretto {

struct ResponsesRequest {
  ChatRequest chat;
  Json asked;  // fields that the answer repeats
};

// What is wrong with the chat request that it became, told with the fields of this one.
ApiError in_words_of_responses(const ApiError& error);

// ApiError 400 naming the field, perhaps as chat names it.
ResponsesRequest parse_responses_request(std::string_view body, const SamplingDefaults& defaults,
                                         int vocab_size);

}  // namespace stretto
