#include "stretto/proof/write_frontier.h"

#include <algorithm>

namespace stretto {

void WriteFrontier::add(const ProgramPoint& write, Past past) {
  of_past_[static_cast<std::size_t>(order_.carried_alike(past))].last.push_back(order_.mark(write));
}

bool WriteFrontier::over_before(const ProgramPoint& y, Path path, int choice) {
  if (!found_last_) find_last();
  for (std::size_t p = 0; p < kNumPasts; ++p) {
    OfPast& of = of_past_[p];
    if (of.last.empty()) continue;
    auto past = static_cast<Past>(p);
    std::int32_t knowledge = order_.knowledge(y, past, path, choice);
    auto [it, is_new] = of.known_over.try_emplace(knowledge, false);
    if (is_new) it->second = over(past, knowledge);
    if (!it->second) return false;
  }
  return true;
}

void WriteFrontier::find_last() {
  for (OfPast& of : of_past_) {
    std::sort(of.last.begin(), of.last.end());
    auto same_component = [](const auto& a, const auto& b) { return a.component == b.component; };
    auto first = std::unique(of.last.rbegin(), of.last.rend(), same_component);
    of.last.erase(of.last.begin(), first.base());
  }
  found_last_ = true;
}

bool WriteFrontier::over(Past past, std::int32_t knowledge) const {
  const auto& last = of_past_[static_cast<std::size_t>(past)].last;
  return std::all_of(last.begin(), last.end(), [&](const HappensBefore::Mark& mark) {
    return order_.reaches(past, knowledge, mark);
  });
}

}  // namespace stretto
