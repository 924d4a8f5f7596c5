// Reads the text form of a program (printer.h) back: for stage dumps, golden files and programs
// given to the command line as a file. The text is hostile until parsed: size, nesting and every
// number are bounded (limits.h), names must be declared before they are used, and nothing is
// evaluated. What comes out has indices in range but is not verified; verifier.h comes next.
#pragma once

#include <string>
#include <string_view>

#include "stretto/ir/program.h"

namespace stretto {

enum class MissingLocs : std::uint8_t {
  kKeep,  // absent locs stay absent: parse(print(p)) is p
  kFill,  // absent locs become this text's own lines: for programs written by hand
};

// UserError "where:line:column: what was expected, got ...".
Program parse(std::string_view text, const std::string& where,
              MissingLocs missing_locs = MissingLocs::kKeep);

}  // namespace stretto
