// Rows of logits and wishes by lot, for tests of the choice of tokens: usual ones and those that
// others get wrong.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "stretto/model/choice/token_choice.h"

namespace stretto {

// A wish with what its spans point at.
struct OwnWish {
  ChoiceRow row;
  std::vector<ChoiceEdit> edits;
  std::vector<std::uint32_t> allowed;

  ChoiceWish wish() const { return {.row = row, .edits = edits, .allowed = allowed}; }
  std::string to_string() const;
};

class ChoiceLot {
 public:
  explicit ChoiceLot(std::uint64_t seed) : random_(seed) {}

  // Spread out, in steps so that many tie, all alike, one above all others, around zero, of zeros
  // of both signs, or huge; with -inf here and there, or all but one.
  std::vector<float> logits(std::size_t vocab);
  OwnWish wish(std::size_t vocab);

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  template <typename T>
  T one_of(std::initializer_list<T> options) {
    return options.begin()[below(options.size())];
  }

  std::mt19937_64 random_;
};

}  // namespace stretto
