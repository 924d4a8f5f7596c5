// Where generated text belongs to a place in the tile program: #line directives, by which profilers
// show instructions at the program's lines. People read the text without them.
#pragma once

#include <string>

#include "stretto/ir/program.h"

namespace stretto {

// The directive, with its line break, that makes the next line of text line `loc.line` of its file.
// Empty where the place is not known.
std::string program_line_text(const SourceLoc& loc);

// The text without its #line directives.
std::string without_program_lines(const std::string& text);

}  // namespace stretto
