// Every size by itself: the reference of tests of pieces that stand for many sizes.
#pragma once

#include <cstddef>

#include "stretto/proof/prove.h"

namespace stretto {

inline ProofResult one_by_one(const Program& program) {
  ProofOptions options;
  options.partition = false;
  options.max_enumerated = std::size_t{1} << 40;
  return prove(program, options);
}

}  // namespace stretto
