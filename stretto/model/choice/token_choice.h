// The choice of a token from a row of logits: the definition that CPU ranks run and that the kernel
// of model/gpu/gpu_choice.h agrees with, token by token. Sums are of whole numbers
// (abi/token_choice.h), so that no order of additions has to be agreed upon.
//
// Before: engine/sampling.h makes a wish of a request's parameters and of what was generated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stretto/abi/token_choice.h"

namespace stretto {

// How a row's token is to be chosen. Spans are the caller's.
struct ChoiceWish {
  ChoiceRow row;
  std::span<const ChoiceEdit> edits;
  // Token t is bit t % 32 of word t / 32; empty: all are allowed.
  std::span<const std::uint32_t> allowed = {};
};

// In the units of ChoiceRow.
std::uint64_t choice_top_p(double p);           // p is 0 to 1; 1 and more: kNoTopP
std::uint64_t choice_min_weight(double min_p);  // min_p is 0 to 1
float choice_inverse_temperature(double temperature);

// Memory that calls share.
struct ChoiceScratch {
  std::vector<std::uint64_t> orders;
};

struct Choice {
  ChoiceStatus status = ChoiceStatus::kChosen;
  int token = -1;
};

// Edits and mask first. Then, unless the largest logit is the choice: top-k keeps the k best and
// what ties with the last; top-p of those the first, by logit and then by token, until they have
// that part of their weight; min-p what has that part of the best one's weight. The draw inverts
// the cumulative weights in order of tokens. Afterwards `logits` holds what choice_scaled() gives
// for those who were kept, -inf for others; of a greedy choice the edited logits.
Choice choose_token(std::span<float> logits, const ChoiceWish& wish, ChoiceScratch& scratch);

// The rest of a ChoiceResult whose token is there, from the row as it was: at most kMostChoiceTop
// alternatives.
void tell_choice(std::span<const float> logits, int num_top, ChoiceResult& result,
                 ChoiceScratch& scratch);

}  // namespace stretto
