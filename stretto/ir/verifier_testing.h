// What tests of the verifier share.
#pragma once

#include <string>

#include "stretto/base/errors.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/verifier.h"

namespace stretto {

// The UserError of a program in the text form, or "accepted".
inline std::string verdict(const std::string& text) {
  try {
    verify(parse(text, "text", MissingLocs::kFill));
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace stretto
