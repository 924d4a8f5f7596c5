// Where in the user's file a word of the language stands: the default argument of each. As
// std::source_location, which clang before 16 does not have with the standard library of GCC; the
// two compilers' code is linked together, so there is one type for both.
#pragma once

namespace stretto {

struct Loc {
  const char* file = "";
  int line = 0;

  // Without arguments: the place of the outermost call, though it stands in a default argument.
  static constexpr Loc current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace stretto
