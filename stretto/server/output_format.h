// What a request demands of its answer's form, under the names that clients use: response_format
// of the OpenAI API, structured_outputs and guided_* of vLLM, grammar and json_schema of
// llama.cpp. After request_reader.h; grammar/front.h makes rules of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stretto/server/request_reader.h"

namespace stretto {

// The keys of objects as they stand in `text`, which is JSON that has been parsed before: schemas
// say with their order in which order an answer has its keys. ApiError for objects of very many.
grammar::OrderedJson in_order(const Json& json, std::string_view text);

// Nothing where any text will do. ApiError 400 naming the field.
std::optional<OutputFormat> read_output_format(const RequestReader& reader, const Json& json,
                                               std::string_view body);

}  // namespace stretto
