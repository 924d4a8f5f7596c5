// What a condition tells of tables: the facts that it is made of (table_choices.h).
#pragma once

#include <optional>
#include <vector>

#include "stretto/proof/expand_state.h"

namespace stretto {

class Conditions {
 public:
  explicit Conditions(ExpandState& state) : state_(state) {}

  // The facts that make up a condition; false where they would not tell all of it.
  bool facts_of(const Expr& condition, std::vector<int>& facts);
  bool fact_of(const Expr& condition, std::vector<int>& facts);
  // The part that has rows where the condition holds: a partition's entry, plus something, is less
  // than the next entry.
  std::optional<TablePoint> inhabited_part(const Expr& condition);
  // That of an iteration of a loop to `end`, a part's rows by so many at a time.
  std::optional<TablePoint> part_of_iteration(std::int64_t iteration, const Expr& end);

 private:
  ExpandState& state_;
};

}  // namespace stretto
