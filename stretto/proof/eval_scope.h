// Values of a program's variables while its tiles are expanded. A variable is known (one value) or,
// when it came from a table whose contents are left open, a range.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/size_region.h"

namespace stretto {

struct ValueRange {
  std::int64_t lo = 0, hi = 0;  // inclusive
  bool exact() const { return lo == hi; }
};

// scale * entry + offset, where the entry's value is left open.
struct TablePoint {
  int table = -1;
  std::int64_t entry = 0;  // of a table of one dimension
  std::int64_t scale = 1, offset = 0;
  friend bool operator==(const TablePoint&, const TablePoint&) = default;
};

// An entry of a table.
struct TableEntry {
  int table = -1;
  std::vector<std::int64_t> index;
  friend auto operator<=>(const TableEntry&, const TableEntry&) = default;
};

class EvalScope {
 public:
  // `region`, where there is one: gets narrowed to where the same is decided (size_region.h). What
  // a table leaves open has a range there, too, and no form.
  EvalScope(const Program& program, std::vector<std::int64_t> vars, const TableWitness* witness,
            SizeRegion* region = nullptr);

  void set(int var, std::int64_t value);
  void set(int var, const ValueRange& range);
  // And where that is open, says what it was computed from.
  void set_to(int var, const Expr& value);
  void set_point(int var, const TablePoint& point) { points_[var] = point; }
  // What an open variable was computed from.
  const Expr* definition(int var) const {
    auto it = definitions_.find(var);
    return it == definitions_.end() ? nullptr : &it->second;
  }
  bool is_open(int var) const { return open_[static_cast<std::size_t>(var)]; }
  // Of a scope with a region: whether the value goes by an entry whose value is not supposed. All
  // other values have forms.
  bool goes_by_table(const Expr& expr);
  std::int64_t get(int var);
  // The value as sizes make it, of a scope with a region: what is not pinned to one value.
  SizeForm form(const Expr& expr);
  // The same of a value for which nothing need be decided.
  std::optional<SizeForm> open_form(const Expr& expr);
  // What a value that goes by a table does not exceed, as sizes make it: a contract may end with
  // them. Absent where that is not seen.
  std::optional<SizeForm> most_of(const Expr& expr);
  // The value is the least of what is largest in each: neither `min` nor `max` is decided.
  using Clauses = std::vector<std::vector<SizeForm>>;
  Clauses clauses(const Expr& expr);
  // Without what makes no difference in the region.
  Clauses simplified(Clauses of) const;
  // Forms the least of which is the value as x < expr sees it, where x is at least `from` at all
  // sizes of the region: a `min` is not decided.
  std::vector<SizeForm> ends_behind(const SizeForm& from, const Expr& expr);
  // Where ends_behind() would decide a `max`: what the value is at least, at all sizes.
  std::optional<std::int64_t> end_at_all_sizes(const SizeForm& from, const Expr& expr);
  // Of a variable whose value has not been asked for yet: what it is computed from, which has not
  // changed since. Null for others.
  const Expr* deferred(int var);

  // DependsOnTable(`what`) where the value is not known.
  std::int64_t value(const Expr& expr, const char* what);
  ValueRange range(const Expr& expr);
  // Which entry of a table the value comes from, where it is one and not known. `of_region`:
  // whatever else a region leaves open; which entry it is, and the numbers beside it, are decided.
  std::optional<TablePoint> table_point(const Expr& expr, bool of_region = false);
  // The same of scale * (entry / by) + offset.
  std::optional<TablePoint> quotient_point(const Expr& expr, std::int64_t by);
  // Of entry % by.
  std::optional<TablePoint> remainder_point(const Expr& expr, std::int64_t by);
  // Of a number of rows: of which part of a partition they are, and how many more.
  std::optional<TablePoint> rows_of_part(const Expr& expr);

  // Supposes that an entry has this value, until forgotten.
  void suppose(const TableEntry& entry, std::int64_t value) { supposed_[entry] = value; }
  void forget(const TableEntry& entry) { supposed_.erase(entry); }
  // An entry of one of these tables that the value depends on and that is open.
  std::optional<TableEntry> open_entry(const Expr& expr, const std::vector<bool>& tables);
  // What the value depends on, spelled out: two values of a launch with the same text are equal.
  // Absent where a table that the launch may change is read.
  std::optional<std::string> text(const Expr& expr);

 private:
  SizeForm decided(int var);
  std::vector<SizeForm> decided(const Clauses& of);
  Clauses clauses_behind(const SizeForm& from, const Expr& expr);
  ValueRange range_of(const Clauses& of) const;
  Clauses negative(const Clauses& of);
  std::optional<Clauses> multiple(const ExprNode& product);
  std::optional<Clauses> comparison(const ExprNode& node);
  // What an open variable was computed from, of a scope with a region: none of what that goes by
  // has changed since.
  const Expr& origin_of(int var);
  ValueRange entry_range(const Contract& contract);
  // Whether evaluating it now would narrow the region by more than `min` and `max`.
  bool decides(const Expr& expr) const;
  bool is_open_by_size(const Expr& expr) const;
  void defer(int var, const Expr& value);
  void note_times(const Expr& expr, std::map<int, int>& as_of) const;
  void changed(int var);
  bool is_known(const Expr& expr);
  ValueRange open_range(const Expr& expr);
  // Of what goes by no table: at all sizes of the region.
  ValueRange sized_range(const Expr& expr);
  std::optional<SizeForm> most_of_product(const ExprNode& product);
  // Of a sum, difference or product of what `point_of` knows and a number.
  template <typename PointOf>
  std::optional<TablePoint> affine_point(const ExprNode& node, const PointOf& point_of);
  ValueRange table_range(const ExprNode& node);
  ValueRange binary_range(ExprOp op, const ValueRange& a, const ValueRange& b);
  std::optional<TablePoint> point_in_region(const Expr& expr);
  // An entry itself.
  std::optional<TablePoint> entry_point(const Expr& expr);
  // Of comparisons between entries of a table that ascends.
  std::optional<bool> ascends(const ExprNode& node);
  // Of an entry, plus something, minus one of the same table: what is known beyond their ranges.
  ValueRange difference(const ExprNode& node);
  bool is_ascending(int table) const;

  const Program* program_;
  const TableWitness* witness_;
  SizeRegion* region_;
  std::vector<SizeForm> forms_;  // where there is a region: of the variables
  // Of variables whose value is the least of several, until one is needed.
  std::map<int, Clauses> least_of_;
  // Of variables that sizes decide, until the value is needed; some never are. With how often each
  // variable that it goes by had been set.
  struct Deferred {
    Expr value;
    std::map<int, int> as_of;
  };
  std::map<int, Deferred> deferred_;
  std::vector<std::int64_t> vars_;
  std::vector<ValueRange> ranges_;
  std::vector<bool> open_;  // the variable is a range
  std::vector<int> times_set_;
  bool has_tables_;
  int num_open_ = 0;
  std::map<int, TablePoint> points_;  // of open variables
  std::map<int, Expr> definitions_;
  // Of those, where there is a region: how often each variable that they go by had been set.
  std::map<int, std::map<int, int>> definitions_as_of_;
  std::map<TableEntry, std::int64_t> supposed_;
};

}  // namespace stretto
