#include "stretto/server/grammar/object_rules.h"

#include <algorithm>

namespace stretto::grammar {

// Further members may repeat a name: all of them together are one that is new for sure.
ObjectRules::Progress ObjectRules::past(Progress progress, bool has_new_name) const {
  progress.names = std::min(progress.names + (has_new_name ? 1 : 0), min_);
  if (max_ >= 0) ++progress.members;
  return progress;
}

ExprPtr ObjectRules::from(Progress progress) {
  auto [known, is_new] = rule_of_.try_emplace({progress, false}, -1);
  if (!is_new) return rule(known->second);
  budget_.make_parts(6);
  budget_.make_rule(rules_.bodies.size());
  const int index = known->second = rules_.add(nullptr);
  std::vector<ExprPtr> out;
  const bool has_room = max_ < 0 || progress.members < max_;
  if (progress.at < num_listed()) {
    const auto& [member, is_required] = members_[static_cast<std::size_t>(progress.at)];
    Progress next = progress;
    ++next.at;
    if (has_room) out.push_back(sequence({member, after(past(next, true))}));
    if (!is_required) out.push_back(from(next));
  } else if (!further_.empty() && has_room) {
    const bool is_first = progress.at == num_listed();
    Progress next = past(progress, is_first);
    next.at = num_listed() + (min_ > 0 ? 1 : 0);
    out.push_back(sequence({choice(further_), after(next)}));
  }
  rules_.bodies[static_cast<std::size_t>(index)] = choice(std::move(out));
  return rule(index);
}

ExprPtr ObjectRules::after(Progress progress) {
  auto [known, is_new] = rule_of_.try_emplace({progress, true}, -1);
  if (!is_new) return rule(known->second);
  budget_.make_parts(6);
  budget_.make_rule(rules_.bodies.size());
  const int index = known->second = rules_.add(nullptr);
  std::vector<ExprPtr> out = {sequence({terminal(text(",")), space_, from(progress)})};
  if (progress.at >= last_required_ && progress.names >= min_) {
    out.push_back(sequence({space_, terminal(text("}"))}));
  }
  rules_.bodies[static_cast<std::size_t>(index)] = choice(std::move(out));
  return rule(index);
}

ExprPtr ObjectRules::whole() {
  for (int i = 0; i < num_listed(); ++i) {
    if (members_[static_cast<std::size_t>(i)].second) last_required_ = i + 1;
  }
  if (further_.empty() && max_ >= num_listed()) max_ = -1;
  const auto num_required = std::count_if(members_.begin(), members_.end(),
                                          [](const auto& member) { return member.second; });
  if (min_ <= num_required) min_ = 0;
  if (min_ > 0 || max_ >= 0) {  // each stands in many rules
    for (auto& [member, is_required] : members_) member = rule(rules_.add(std::move(member)));
    for (ExprPtr& member : further_) member = rule(rules_.add(std::move(member)));
  }
  ExprPtr first = from({});
  if (last_required_ == 0 && min_ == 0) first = choice({std::move(first), terminal(text("}"))});
  return sequence({terminal(text("{")), space_, std::move(first)});
}

}  // namespace stretto::grammar
