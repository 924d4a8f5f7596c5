// What making a grammar may cost, since requests bring them: steps, seconds and memory, counted by
// every loop whose length a request decides.
#pragma once

#include <chrono>
#include <cstddef>
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
    // The rest of five seconds is for the last step and for giving memory back, where others have
    // most of the processor.
    std::chrono::milliseconds time{4500};
    int nodes = 200'000;        // of a grammar
    int rules = 100'000;        // of a grammar
    int parts = 1'000'000;      // of the trees that are made before the automaton
    int states = 60'000;        // of one terminal
    int repetitions = 100'000;  // of one {m,n}
  };

  Budget() : Budget(Limits()) {}
  explicit Budget(const Limits& limits)
      : limits_(limits), end_(std::chrono::steady_clock::now() + limits.time) {}

  const Limits& limits() const { return limits_; }
  // Before work of about so many steps of up to 100 ns. GrammarError where steps or time have run
  // out, from then on each time.
  void spend(std::int64_t steps = 1) {
    spent_ += steps;
    if (++unseen_calls_ < kCallsPerLook && spent_ < next_look_) return;
    if (spent_ > limits_.steps || std::chrono::steady_clock::now() > end_) {
      next_look_ = 0;
      throw GrammarError("the grammar is too large: making its automaton takes too long");
    }
    unseen_calls_ = 0;
    next_look_ = spent_ + kStepsPerLook;
  }
  // Before parts of a tree are made that stay until the end. GrammarError as spend(), and where
  // there are too many.
  void make_parts(std::size_t count) {
    spend(static_cast<std::int64_t>(count));
    parts_ += count;
    if (parts_ > static_cast<std::size_t>(limits_.parts)) {
      throw GrammarError("the grammar is too large: its parts do not fit into memory");
    }
  }
  // Where a grammar has `rules` rules. GrammarError as above.
  void make_rule(std::size_t rules) {
    make_parts(1);
    if (rules >= static_cast<std::size_t>(limits_.rules)) {
      throw GrammarError("the grammar is too large: it has too many rules");
    }
  }

 private:
  // Reading the clock takes some 30 ns.
  static constexpr int kCallsPerLook = 64;
  static constexpr std::int64_t kStepsPerLook = 4000;

  Limits limits_;
  std::chrono::steady_clock::time_point end_;
  std::int64_t spent_ = 0, next_look_ = 0;
  int unseen_calls_ = 0;
  std::size_t parts_ = 0;
};

}  // namespace stretto::grammar
