// Tokens to a tree. After lexer.h, before evaluator.h.
#pragma once

#include <vector>

#include "stretto/server/jinja/ast.h"
#include "stretto/server/jinja/lexer.h"

namespace stretto::jinja {

// TemplateError with the line for what is wrong, and for parts of Jinja that are not there.
Statements parse(std::vector<Token> tokens);

}  // namespace stretto::jinja
