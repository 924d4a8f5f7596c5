// What an event needs of the tables of its rank in order to happen. Where a table decides which
// signal is waited for, the graph holds the waits of every value that the contract allows, and
// every such wait, and every access made in the same case, says in which case it happens: its
// choice, a set of facts about entries of the rank's own tables. Tables that are inputs stay as
// they are for a launch, so within a rank and a launch a fact is true everywhere or nowhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

enum class FactKind : std::uint8_t {
  kValue,      // an entry has this value
  kInhabited,  // part `entry` of a partition has more than `value` rows
  kCondition,  // anything else, known by its text alone
};

struct TableFact {
  FactKind kind = FactKind::kValue;
  int table = -1;
  std::vector<std::int64_t> entry;
  std::int64_t value = 0;
  std::string condition;
  friend auto operator<=>(const TableFact&, const TableFact&) = default;
};

// Facts and sets of facts, numbered; the numbers are comparable between all graphs that share this.
// One thread at a time may use it: each numbers in its own, and adopt() brings them together.
class TableChoices {
 public:
  static constexpr int kAlways = -1;  // the choice without facts

  // Whether any event depends on a table.
  bool any() const { return !choices_.empty(); }
  int fact(const TableFact& fact);
  int choice(std::vector<int> facts);
  // Everything that `other` knows; of each of its choices, by number, the number here.
  std::vector<int> adopt(const TableChoices& other);
  // That an entry has one of the values from `lo` to `hi`, whatever the table.
  void bound(const TableFact& entry, std::int64_t lo, std::int64_t hi);
  // The choice with one more fact, for each value of the entry that `fact` is about; empty where
  // its bounds are not known, or the choice tells its value.
  std::vector<int> cases(int choice, int fact);
  const std::vector<int>& facts_in(int choice) const { return of(choice); }
  const TableFact& fact_at(int fact) const { return facts_[static_cast<std::size_t>(fact)]; }
  std::vector<TableFact> facts(int choice) const;

  // Whatever happens under `strong` has the facts of `weak`, too.
  bool implies(int strong, int weak) const;
  // Whether no table has the facts of both.
  bool exclusive(int a, int b) const;
  // The facts of either that the other implies, too.
  int common(int a, int b);
  // Those facts of a choice that are values of entries.
  int values(int choice);

  std::string describe(const Program& program, int choice) const;

 private:
  using Entry = std::pair<int, std::vector<std::int64_t>>;  // which table, and where

  void widen(const Entry& entry, std::int64_t lo, std::int64_t hi);
  const std::vector<int>& of(int choice) const {
    return choices_[static_cast<std::size_t>(choice)];
  }
  bool implies_fact(int strong, int fact) const;

  std::vector<TableFact> facts_;
  std::map<TableFact, int> fact_ids_;
  std::vector<std::vector<int>> choices_;
  std::map<std::vector<int>, int> choice_ids_;
  std::map<Entry, std::pair<std::int64_t, std::int64_t>> bounds_;
};

}  // namespace stretto
