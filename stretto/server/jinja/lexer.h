// A template's text as tokens. White space around tags goes as jinja2 has it with trim_blocks and
// lstrip_blocks on, as transformers sets it up. Before parser.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/server/jinja/text.h"

namespace stretto::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    kData,           // between tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string word = {};  // of names, operators and numbers
  Text text = {};         // of data and strings
};

// Ends with kEnd. TemplateError with the line for what is no token or not closed.
std::vector<Token> lex(Text source);

}  // namespace stretto::jinja
