#include "stretto/proof/table_choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "stretto/base/at.h"

namespace stretto {
int TableChoices::fact(const TableFact& fact) {
  auto [it, is_new] = fact_ids_.try_emplace(fact, static_cast<int>(facts_.size()));
  if (is_new) facts_.push_back(fact);
  return it->second;
}

int TableChoices::choice(std::vector<int> facts) {
  if (facts.empty()) return kAlways;
  std::sort(facts.begin(), facts.end());
  facts.erase(std::unique(facts.begin(), facts.end()), facts.end());
  auto [it, is_new] = choice_ids_.try_emplace(facts, static_cast<int>(choices_.size()));
  if (is_new) choices_.push_back(std::move(facts));
  return it->second;
}

std::vector<int> TableChoices::adopt(const TableChoices& other) {
  std::vector<int> fact_here, choice_here;
  for (const TableFact& f : other.facts_) fact_here.push_back(fact(f));
  for (const std::vector<int>& facts : other.choices_) {
    std::vector<int> here;
    for (int f : facts) here.push_back(fact_here[at(f)]);
    choice_here.push_back(choice(std::move(here)));
  }
  for (const auto& [entry, range] : other.bounds_) widen(entry, range.first, range.second);
  return choice_here;
}

std::vector<TableFact> TableChoices::facts(int choice) const {
  std::vector<TableFact> out;
  if (choice == kAlways) return out;
  for (int f : of(choice)) out.push_back(facts_[at(f)]);
  return out;
}

void TableChoices::bound(const TableFact& entry, std::int64_t lo, std::int64_t hi) {
  widen({entry.table, entry.entry}, lo, hi);
}

// Bounds differ from size to size; the widest hold at all of them.
void TableChoices::widen(const Entry& entry, std::int64_t lo, std::int64_t hi) {
  auto [it, is_new] = bounds_.try_emplace(entry, lo, hi);
  it->second = {std::min(it->second.first, lo), std::max(it->second.second, hi)};
}

std::vector<int> TableChoices::cases(int choice_idx, int fact_idx) {
  TableFact one = facts_[at(fact_idx)];
  auto bounds = bounds_.find({one.table, one.entry});
  if (one.kind != FactKind::kValue || bounds == bounds_.end()) return {};
  std::vector<int> known, out;
  if (choice_idx != kAlways) known = of(choice_idx);
  for (int f : known) {
    const TableFact& k = facts_[at(f)];
    if (k.kind == FactKind::kValue && k.table == one.table && k.entry == one.entry) return {};
  }
  auto [lo, hi] = bounds->second;
  for (one.value = lo; one.value <= hi; ++one.value) {
    known.push_back(fact(one));
    out.push_back(choice(known));
    known.pop_back();
  }
  return out;
}

bool TableChoices::implies(int strong, int weak) const {
  if (weak == kAlways || strong == weak) return true;
  if (strong == kAlways) return false;
  const auto& needed = of(weak);
  return std::all_of(needed.begin(), needed.end(), [&](int f) { return implies_fact(strong, f); });
}

// A part with more rows than some has more than fewer.
bool TableChoices::implies_fact(int strong, int fact) const {
  const TableFact& needed = facts_[at(fact)];
  return std::any_of(of(strong).begin(), of(strong).end(), [&](int f) {
    const TableFact& known = facts_[at(f)];
    if (f == fact) return true;
    return needed.kind == FactKind::kInhabited && known.kind == FactKind::kInhabited &&
           known.table == needed.table && known.entry == needed.entry &&
           known.value >= needed.value;
  });
}

bool TableChoices::exclusive(int a, int b) const {
  if (a == b || a == kAlways || b == kAlways) return false;
  for (int x : of(a)) {
    const TableFact& f = facts_[at(x)];
    if (f.kind != FactKind::kValue) continue;
    for (int y : of(b)) {
      const TableFact& g = facts_[at(y)];
      if (g.kind == FactKind::kValue && g.table == f.table && g.entry == f.entry &&
          g.value != f.value) {
        return true;
      }
    }
  }
  return false;
}

int TableChoices::common(int a, int b) {
  if (a == b) return a;
  if (a == kAlways || b == kAlways) return kAlways;
  std::vector<int> both;
  for (int f : of(a)) {
    if (implies_fact(b, f)) both.push_back(f);
  }
  for (int f : of(b)) {
    if (implies_fact(a, f)) both.push_back(f);
  }
  return choice(std::move(both));
}

int TableChoices::values(int choice_idx) {
  if (choice_idx == kAlways) return kAlways;
  std::vector<int> out;
  for (int f : of(choice_idx)) {
    if (facts_[at(f)].kind == FactKind::kValue) out.push_back(f);
  }
  return choice(std::move(out));
}

std::string TableChoices::describe(const Program& program, int choice) const {
  std::string text;
  for (const TableFact& f : facts(choice)) {
    if (!text.empty()) text += " and ";
    std::string name = f.table < 0 ? "" : program.tensors[at(f.table)].name;
    switch (f.kind) {
      case FactKind::kValue:
        text += fmt::format("'{}'[{}] = {}", name, fmt::join(f.entry, ", "), f.value);
        break;
      case FactKind::kInhabited:
        text += fmt::format("part {} of '{}' has more than {} rows", fmt::join(f.entry, ", "), name,
                            f.value);
        break;
      case FactKind::kCondition:
        text += f.condition;
        break;
    }
  }
  return text;
}

}  // namespace stretto
