// In which order attention over a cache adds up: keys come in runs, each adds up from nothing, and
// the runs are then added up in their order. Where a run begins depends on its place alone, so that
// a row has the same bits whether one worker goes through all of its runs or several take some at a
// time, and whatever else is in its step.
//
// The first sixteen runs are of one length, then each eight are twice as long as the eight before:
// short enough that a sequence of any length keeps many workers busy, and never many to add up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "stretto/ir/expr.h"

namespace stretto {

class AttentionRuns {
 public:
  // `first`: the length of the first run, `steps`: of the longest sequence; in steps of keys.
  AttentionRuns(std::int64_t first, std::int64_t steps) : first_(first), steps_(steps) {}

  // Of the longest sequence.
  std::int64_t count() const {
    std::int64_t n = 0;
    while (start(n) < steps_) ++n;
    return std::max<std::int64_t>(n, 1);
  }
  std::int64_t start(std::int64_t run) const {
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < run; ++i) at += length(i);
    return at;
  }
  // The same where it runs over 0 .. count(): lengths grow, so it is the highest of straight lines.
  Expr start(const Expr& run) const {
    Expr at = run * first_;
    for (std::int64_t from = kFirst; from < count(); from += kNext) {
      at = max(at, (run - from) * length(from) + start(from));
    }
    return at;
  }
  // How many there are of a sequence of 0 .. steps.
  Expr count(const Expr& steps) const {
    Expr all = ceil_div(steps, first_);
    for (std::int64_t from = kFirst; from < count(); from += kNext) {
      all = min(all, from + ceil_div(max(steps - start(from), 0), length(from)));
    }
    return all;
  }
  // Whether a run begins at a step of a sequence.
  Expr begins(const Expr& step) const {
    Expr any = step % first_ == 0 && step < start(kFirst);
    for (std::int64_t from = kFirst; from < count(); from += kNext) {
      any = any || (step % length(from) == 0 && step < start(from + kNext));
    }
    return any;
  }

 private:
  static constexpr std::int64_t kFirst = 16, kNext = 8;
  std::int64_t length(std::int64_t run) const {
    std::int64_t doublings = run < kFirst ? 0 : (run - kFirst) / kNext + 1;
    return first_ << doublings;
  }

  std::int64_t first_, steps_;
};

}  // namespace stretto
