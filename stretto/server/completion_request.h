// POST /v1/completions as it was asked, every field checked. Fields of the OpenAI API and those
// that vLLM adds, under its names; docs/guide/serving.md lists which are honoured, refused and
// ignored.
#pragma once

#include <string_view>

#include "stretto/model/checkpoint/generation_config.h"
#include "stretto/server/request_fields.h"

namespace stretto {

// `defaults`: what sampling is where the request is silent. ApiError 400 naming the field.
CompletionRequest parse_completion_request(std::string_view body, const SamplingDefaults& defaults,
                                           int vocab_size, const CompletionLimits& limits = {});

}  // namespace stretto
