// What making a grammar may cost, since requests bring them: steps and seconds, counted by every
// loop whose length a request decides.
#pragma once

#include <chrono>
#include <cstdint>

#include "stretto/base/errors.h"

namespace stretto::grammar {

// What is wrong with a request's grammar.
class GrammarError : public UserError {
 public:
  using UserError::UserError;
};

class Budget {
 public:
  struct Limits {
    std::int64_t steps = 20'000'000;
    std::chrono::milliseconds time{5000};
    int nodes = 200'000;        // of a grammar
    int states = 60'000;        // of one terminal
    int repetitions = 100'000;  // of one {m,n}
  };

  Budget() : Budget(Limits()) {}
  explicit Budget(const Limits& limits)
      : limits_(limits), end_(std::chrono::steady_clock::now() + limits.time) {}

  const Limits& limits() const { return limits_; }
  // GrammarError where steps or time have run out.
  void spend(std::int64_t steps = 1) {
    spent_ += steps;
    if (spent_ < next_look_) return;
    next_look_ = spent_ + 10'000;
    if (spent_ > limits_.steps || std::chrono::steady_clock::now() > end_) {
      throw GrammarError("the grammar is too large: making its automaton takes too long");
    }
  }

 private:
  Limits limits_;
  std::chrono::steady_clock::time_point end_;
  std::int64_t spent_ = 0, next_look_ = 0;
};

}  // namespace stretto::grammar
