// The members of a JSON object in their order, as rules: which of them are there, and how many.
// json_schema.cc says what each is.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

class ObjectRules {
 public:
  // `min` to `max` members; max -1: without end.
  ObjectRules(Rules& rules, Budget& budget, ExprPtr space, int min, int max)
      : rules_(rules), budget_(budget), space_(std::move(space)), min_(min), max_(max) {}

  // Both are a name with its value. Further ones come behind the others, as often as may be.
  void add_member(ExprPtr member, bool is_required) { members_.emplace_back(member, is_required); }
  void add_further(ExprPtr member) { further_.push_back(std::move(member)); }
  // Names that are there for sure where all come.
  int most_names() const { return num_listed() + (further_.empty() ? 0 : 1); }
  bool has_further() const { return !further_.empty(); }
  // Once.
  ExprPtr whole();

 private:
  // Before the member `at`, or behind all: how many different names there are for sure, how many
  // members; both only as far as they count.
  struct Progress {
    int at = 0, names = 0, members = 0;
    auto operator<=>(const Progress&) const = default;
  };

  ExprPtr from(Progress progress);   // another one
  ExprPtr after(Progress progress);  // another one, or the end
  Progress past(Progress progress, bool has_new_name) const;
  int num_listed() const { return static_cast<int>(members_.size()); }

  Rules& rules_;
  Budget& budget_;
  ExprPtr space_;
  int min_, max_;
  std::vector<std::pair<ExprPtr, bool>> members_;
  std::vector<ExprPtr> further_;
  std::map<std::pair<Progress, bool>, int> rule_of_;
  int last_required_ = 0;  // one behind it
};

}  // namespace stretto::grammar
