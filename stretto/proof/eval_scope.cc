#include "stretto/proof/eval_scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/tables.h"

namespace stretto {
namespace {

class WitnessReader : public TableReader {
 public:
  WitnessReader(const TableWitness& witness, int rank) : witness_(witness), rank_(rank) {}
  std::int64_t read(int tensor_idx, std::span<const std::int64_t> index) override {
    return witness_.value(rank_, tensor_idx, index);
  }

 private:
  const TableWitness& witness_;
  int rank_;
};

const char* word(ExprOp op) {
  constexpr const char* kWords[] = {"const", "var", "add", "sub",   "mul",     "div",
                                    "mod",   "min", "max", "less",  "at_most", "equal",
                                    "and",   "or",  "not", "select"};
  return kWords[static_cast<std::size_t>(op)];
}

}  // namespace

EvalScope::EvalScope(const Program& program, std::vector<std::int64_t> vars,
                     const TableWitness* witness, SizeRegion* region)
    : program_(&program),
      witness_(witness),
      region_(region),
      vars_(std::move(vars)),
      ranges_(vars_.size()),
      open_(vars_.size(), false),
      times_set_(vars_.size(), 0),
      has_tables_(std::ranges::any_of(program.tensors, is_table)) {
  if (region == nullptr) return;
  std::size_t size = 0;
  for (std::size_t v = 0; v < vars_.size(); ++v) {
    VarKind kind = program.vars[v].kind;
    bool given = kind == VarKind::kExtent || kind == VarKind::kScalar;
    forms_.push_back(given ? region->extent(size++) : SizeForm{.value = vars_[v]});
  }
}

bool EvalScope::goes_by_table(const Expr& expr) {
  if (!has_tables_) return false;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) return !open_range(expr).exact();
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    return is_open(var) && goes_by_table(origin_of(var));
  }
  return std::ranges::any_of(n.args, [&](const Expr& arg) { return goes_by_table(arg); });
}

const Expr& EvalScope::origin_of(int var) {
  auto it = definitions_.find(var);
  if (it == definitions_.end()) throw DependsOnTable{"what sizes do"};
  for (auto [other, times] : definitions_as_of_[var]) {
    if (times_set_[at(other)] != times) throw DependsOnTable{"what sizes do"};
  }
  return it->second;
}

std::int64_t EvalScope::get(int var) {
  auto v = static_cast<std::size_t>(var);
  return region_ != nullptr ? region_->pin(decided(var)) : vars_[v];
}

SizeForm EvalScope::form(const Expr& expr) {
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return form(n.args[i]); };
  switch (n.op) {
    case ExprOp::kConst:
      return {.value = n.value};
    case ExprOp::kVar:
      return decided(static_cast<int>(n.value));
    case ExprOp::kNot:
      return {.value = region_->pin(arg(0)) == 0 ? 1 : 0};
    case ExprOp::kSelect:
      return arg(region_->pin(arg(0)) != 0 ? 1 : 2);
    case ExprOp::kTable: {
      ValueRange known = open_range(expr);
      if (!known.exact()) throw DependsOnTable{"what sizes do"};
      return {.value = known.lo};
    }
    default: {
      SizeForm a = arg(0);
      return region_->apply(n.op, a, arg(1));
    }
  }
}

SizeForm EvalScope::decided(int var) {
  if (is_open(var)) return form(origin_of(var));
  SizeForm& known = forms_[static_cast<std::size_t>(var)];
  if (const Expr* value = deferred(var)) {
    known = form(*value);
    deferred_.erase(var);
  }
  auto it = least_of_.find(var);
  if (it == least_of_.end()) return known;
  std::vector<SizeForm> all = decided(it->second);
  known = all[0];
  for (const SizeForm& f : all) known = region_->apply(ExprOp::kMin, known, f);
  least_of_.erase(it);
  return known;
}

std::vector<SizeForm> EvalScope::decided(const Clauses& of) {
  std::vector<SizeForm> out;
  for (const auto& clause : of) {
    SizeForm& most = out.emplace_back(clause[0]);
    for (const SizeForm& f : clause) most = region_->apply(ExprOp::kMax, most, f);
  }
  return out;
}

const Expr* EvalScope::deferred(int var) {
  auto it = deferred_.find(var);
  if (it == deferred_.end()) return nullptr;
  for (auto [other, times] : it->second.as_of) {
    if (times_set_[at(other)] != times) throw DependsOnTable{"what sizes do"};
  }
  return &it->second.value;
}

void EvalScope::changed(int var) {
  ++times_set_[at(var)];
  least_of_.erase(var);
  deferred_.erase(var);
}

bool EvalScope::decides(const Expr& expr) const {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kConst) return false;
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    return deferred_.count(var) != 0;
  }
  bool fixed = std::none_of(n.args.begin(), n.args.end(),
                            [&](const Expr& arg) { return is_open_by_size(arg); });
  if (fixed) return false;
  bool linear =
      n.op == ExprOp::kAdd || n.op == ExprOp::kSub || n.op == ExprOp::kMin || n.op == ExprOp::kMax;
  if (n.op == ExprOp::kMul) linear = !is_open_by_size(n.args[0]) || !is_open_by_size(n.args[1]);
  return !linear ||
         std::any_of(n.args.begin(), n.args.end(), [&](const Expr& arg) { return decides(arg); });
}

bool EvalScope::is_open_by_size(const Expr& expr) const {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (auto it = definitions_.find(var); it != definitions_.end() && is_open(var)) {
      return is_open_by_size(it->second);
    }
    return deferred_.count(var) != 0 || least_of_.count(var) != 0 ||
           !forms_[static_cast<std::size_t>(var)].is_constant();
  }
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return is_open_by_size(arg); });
}

// Without what another form of the clause is never below, and without clauses that another one
// never exceeds.
EvalScope::Clauses EvalScope::simplified(Clauses of) const {
  auto at_most = [&](const SizeForm& a, const SizeForm& b) {
    SizeForm less{.value = a.value - b.value};
    for (std::size_t i = 0; i < less.slope.size(); ++i) less.slope[i] = a.slope[i] - b.slope[i];
    return region_->most(less) <= 0;
  };
  for (auto& clause : of) {
    for (std::size_t i = 0; i < clause.size();) {
      bool idle = false;
      for (std::size_t j = 0; j < clause.size(); ++j) {
        idle |= j != i && at_most(clause[i], clause[j]);
      }
      i += idle ? 0 : 1;
      if (idle) clause.erase(clause.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  auto never_exceeds = [&](const auto& x, const auto& y) {
    return std::ranges::all_of(x, [&](const SizeForm& a) {
      return std::ranges::any_of(y, [&](const SizeForm& b) { return at_most(a, b); });
    });
  };
  for (std::size_t i = 0; i < of.size();) {
    bool idle = false;
    for (std::size_t j = 0; j < of.size(); ++j) idle |= j != i && never_exceeds(of[j], of[i]);
    i += idle ? 0 : 1;
    if (idle) of.erase(of.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return of;
}

// Minus the value: of the largest of several that is the least, and the other way round.
EvalScope::Clauses EvalScope::negative(const Clauses& of) {
  Clauses out;
  if (of.size() == 1) {
    for (const SizeForm& f : of[0]) out.push_back({region_->apply(ExprOp::kSub, {}, f)});
    return out;
  }
  auto& most = out.emplace_back();
  for (const SizeForm& f : decided(of)) most.push_back(region_->apply(ExprOp::kSub, {}, f));
  return out;
}

// By a number that sizes do not change: the least of what is largest stays that, the other way
// round where the number is below zero.
std::optional<EvalScope::Clauses> EvalScope::multiple(const ExprNode& product) {
  std::size_t number = is_open_by_size(product.args[0]) ? 1 : 0;
  if (is_open_by_size(product.args[number])) return {};
  std::int64_t by = region_->pin(form(product.args[number]));
  if (by == 0) return Clauses{{SizeForm{}}};
  Clauses out = clauses(product.args[1 - number]);
  if (by < 0) out = negative(out);
  for (auto& clause : out) {
    for (SizeForm& f : clause) {
      f = region_->apply(ExprOp::kMul, f, {.value = by < 0 ? -by : by});
    }
  }
  return out;
}

// a < b is the least of one and of the larger of zero and b - a.
std::optional<EvalScope::Clauses> EvalScope::comparison(const ExprNode& node) {
  Clauses a = clauses(node.args[0]), b = clauses(node.args[1]);
  bool plain = a.size() == 1 && a[0].size() == 1 && b.size() == 1 && b[0].size() == 1;
  if (!plain) return {};
  SizeForm more = region_->apply(ExprOp::kSub, b[0][0], a[0][0]);
  more.value += node.op == ExprOp::kLe ? 1 : 0;
  return simplified({{{.value = 1}}, {{.value = 0}, more}});
}

EvalScope::Clauses EvalScope::clauses(const Expr& expr) {
  constexpr std::size_t kMost = 12;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (is_open(var)) return clauses(origin_of(var));
    auto it = least_of_.find(var);
    if (it != least_of_.end()) return it->second;
    if (const Expr* value = deferred(var)) return clauses(*value);
  } else if (!is_open_by_size(expr)) {
    return {{form(expr)}};  // a number
  }
  if (n.op == ExprOp::kMul) {
    if (std::optional<Clauses> of = multiple(n)) return std::move(*of);
  }
  if (n.op == ExprOp::kLt || n.op == ExprOp::kLe) {
    if (std::optional<Clauses> of = comparison(n)) return std::move(*of);
  }
  bool open = n.op == ExprOp::kMin || n.op == ExprOp::kMax || n.op == ExprOp::kAdd;
  if (!open && n.op != ExprOp::kSub) return {{form(expr)}};
  Clauses a = clauses(n.args[0]), out;
  Clauses b = clauses(n.args[1]);
  if (n.op == ExprOp::kSub) b = negative(b);
  if (n.op == ExprOp::kMin) {
    out = a;
    out.insert(out.end(), b.begin(), b.end());
  }
  for (const auto& x : a) {
    for (const auto& y : b) {
      if (n.op == ExprOp::kMin) continue;
      auto& both = out.emplace_back();
      if (n.op == ExprOp::kMax) {
        both = x;
        both.insert(both.end(), y.begin(), y.end());
        continue;
      }
      for (const SizeForm& f : x) {
        for (const SizeForm& g : y) both.push_back(region_->apply(ExprOp::kAdd, f, g));
      }
    }
  }
  out = simplified(std::move(out));
  std::size_t forms = 0;
  for (const auto& clause : out) forms += clause.size();
  if (forms <= kMost) return out;
  std::vector<SizeForm> all = decided(out);
  SizeForm least = all[0];
  for (const SizeForm& f : all) least = region_->apply(ExprOp::kMin, least, f);
  return {{least}};
}

std::optional<SizeForm> EvalScope::open_form(const Expr& expr) {
  if (goes_by_table(expr) || decides(expr)) return {};
  Clauses known = clauses(expr);
  bool one = known.size() == 1 && known[0].size() == 1;
  return one ? std::optional(known[0][0]) : std::nullopt;
}

std::optional<SizeForm> EvalScope::most_of(const Expr& expr) {
  if (!goes_by_table(expr)) return form(expr);
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) return most_of(origin_of(static_cast<int>(n.value)));
  if (n.op == ExprOp::kTable) {
    const Contract& contract = program_->tensors[at(n.value)].contract;
    SizeForm most = region_->apply(ExprOp::kSub, form(contract.hi), {.value = 1});
    SizeForm room = region_->apply(ExprOp::kSub, most, form(contract.lo));
    return region_->least(room) >= 0 ? std::optional(most) : std::nullopt;
  }
  if (n.op == ExprOp::kMul) return most_of_product(n);
  if (n.op != ExprOp::kAdd) return {};
  std::optional<SizeForm> a = most_of(n.args[0]), b = most_of(n.args[1]);
  return a && b ? std::optional(region_->apply(ExprOp::kAdd, *a, *b)) : std::nullopt;
}

// Of an entry and what sizes make, neither of them below zero.
std::optional<SizeForm> EvalScope::most_of_product(const ExprNode& product) {
  bool left = goes_by_table(product.args[0]);
  const Expr &entry = product.args[left ? 0 : 1], &sized = product.args[left ? 1 : 0];
  if (goes_by_table(sized)) return {};
  ValueRange times = open_range(entry);
  SizeForm of = form(sized);
  if (times.lo < 0 || region_->least(of) < 0) return {};
  return region_->apply(ExprOp::kMul, of, {.value = times.hi});
}

EvalScope::Clauses EvalScope::clauses_behind(const SizeForm& from, const Expr& expr) {
  Clauses all = clauses(expr);
  for (auto& clause : all) {
    // Nothing that is at least `from` lies before those.
    auto before = [&](const SizeForm& f) {
      SizeForm more = region_->apply(ExprOp::kSub, f, from);
      return region_->most(more) <= 0;
    };
    SizeForm first = clause[0];
    std::erase_if(clause, before);
    if (clause.empty()) clause.push_back(first);
  }
  return all;
}

std::vector<SizeForm> EvalScope::ends_behind(const SizeForm& from, const Expr& expr) {
  return decided(clauses_behind(from, expr));
}

std::optional<std::int64_t> EvalScope::end_at_all_sizes(const SizeForm& from, const Expr& expr) {
  if (goes_by_table(expr)) return {};
  Clauses all = clauses_behind(from, expr);
  bool decides = std::ranges::any_of(all, [](const auto& clause) { return clause.size() > 1; });
  return decides ? std::optional(range_of(all).lo) : std::nullopt;
}

// At all sizes of the region.
ValueRange EvalScope::range_of(const Clauses& of) const {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(),
                         kMost = std::numeric_limits<std::int64_t>::max();
  ValueRange all{kMost, kMost};
  for (const auto& clause : of) {
    ValueRange largest{kLeast, kLeast};
    for (const SizeForm& f : clause) {
      largest.lo = std::max(largest.lo, region_->least(f));
      largest.hi = std::max(largest.hi, region_->most(f));
    }
    all.lo = std::min(all.lo, largest.lo);
    all.hi = std::min(all.hi, largest.hi);
  }
  return all;
}

void EvalScope::set(int var, std::int64_t value) {
  auto v = static_cast<std::size_t>(var);
  num_open_ -= open_[v] ? 1 : 0;
  if (open_[v]) {
    points_.erase(var);
    definitions_.erase(var);
  }
  open_[v] = false;
  vars_[v] = value;
  if (region_ == nullptr) return;
  forms_[v] = {.value = value};
  changed(var);
}

void EvalScope::set(int var, const ValueRange& range) {
  if (range.exact()) return set(var, range.lo);
  if (region_ != nullptr) throw DependsOnTable{"what sizes do"};
  auto v = static_cast<std::size_t>(var);
  num_open_ += open_[v] ? 0 : 1;
  points_.erase(var);
  definitions_.erase(var);
  open_[v] = true;
  ranges_[v] = range;
}

void EvalScope::defer(int var, const Expr& value) {
  Deferred later{.value = value, .as_of = {}};
  note_times(value, later.as_of);
  set(var, 0);
  deferred_[var] = std::move(later);
}

void EvalScope::note_times(const Expr& expr, std::map<int, int>& as_of) const {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) as_of[static_cast<int>(n.value)] = times_set_[at(n.value)];
  for (const Expr& arg : n.args) note_times(arg, as_of);
}

void EvalScope::set_to(int var, const Expr& value) {
  if (region_ != nullptr && goes_by_table(value)) {
    if (!region_->masks_open() || uses_var(value, var)) throw DependsOnTable{"what sizes do"};
    std::map<int, int> as_of;
    note_times(value, as_of);
    set(var, 0);
    num_open_ += 1;
    open_[at(var)] = true;
    definitions_.insert_or_assign(var, value);
    definitions_as_of_[var] = std::move(as_of);
    return;
  }
  if (region_ != nullptr && region_->masks_open()) {
    if (decides(value) && !uses_var(value, var)) return defer(var, value);
    Clauses known = clauses(value);
    set(var, 0);  // nobody asks for more than forms
    forms_[static_cast<std::size_t>(var)] = known[0][0];
    if (known.size() > 1 || known[0].size() > 1) least_of_[var] = std::move(known);
    return;
  }
  if (region_ != nullptr) {
    SizeForm known = form(value);
    set(var, known.value);
    forms_[static_cast<std::size_t>(var)] = known;
    return;
  }
  ValueRange all = range(value);
  set(var, all);
  if (!all.exact()) definitions_[var] = value;
}

std::int64_t EvalScope::value(const Expr& expr, const char* what) {
  if (region_ != nullptr) return region_->pin(form(expr));
  if (num_open_ == 0 && !uses_table(expr)) return eval(expr, vars_);
  ValueRange r = range(expr);
  if (!r.exact()) throw DependsOnTable{what};
  return r.lo;
}

ValueRange EvalScope::table_range(const ExprNode& node) {
  auto tensor_idx = static_cast<int>(node.value);
  if (witness_ != nullptr) {
    std::vector<std::int64_t> index;
    for (const Expr& arg : node.args) index.push_back(value(arg, "index of a table"));
    std::int64_t v = WitnessReader(*witness_, static_cast<int>(vars_[0])).read(tensor_idx, index);
    return {v, v};
  }
  if (!supposed_.empty()) {
    TableEntry entry{.table = tensor_idx, .index = {}};
    bool exact = true;
    for (const Expr& arg : node.args) {
      ValueRange r = range(arg);
      exact &= r.exact();
      entry.index.push_back(r.lo);
    }
    auto it = supposed_.find(entry);
    if (exact && it != supposed_.end()) return {it->second, it->second};
  }
  const Contract& contract = program_->tensors[static_cast<std::size_t>(tensor_idx)].contract;
  if (contract.kind == ContractKind::kNone) {
    throw Rejected("table '" + program_->tensors[static_cast<std::size_t>(tensor_idx)].name +
                   "' has no contract, so nothing is known about its values");
  }
  return entry_range(contract);
}

// Of all sizes of the region, where there is one.
ValueRange EvalScope::entry_range(const Contract& contract) {
  if (region_ != nullptr) {
    std::int64_t lo = region_->least(form(contract.lo)), hi = region_->most(form(contract.hi));
    return {lo, std::max(lo, hi - 1)};
  }
  std::int64_t lo = value(contract.lo, "contract"), hi = value(contract.hi, "contract");
  return {lo, std::max(lo, hi - 1)};
}

ValueRange EvalScope::binary_range(ExprOp op, const ValueRange& a, const ValueRange& b) {
  if (a.exact() && b.exact()) {
    std::int64_t v = apply(op, a.lo, b.lo);
    return {v, v};
  }
  switch (op) {
    case ExprOp::kAdd:
      return {apply(op, a.lo, b.lo), apply(op, a.hi, b.hi)};
    case ExprOp::kSub:
      return {apply(op, a.lo, b.hi), apply(op, a.hi, b.lo)};
    case ExprOp::kMul: {
      auto [lo, hi] = std::minmax({apply(op, a.lo, b.lo), apply(op, a.lo, b.hi),
                                   apply(op, a.hi, b.lo), apply(op, a.hi, b.hi)});
      return {lo, hi};
    }
    case ExprOp::kMin:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case ExprOp::kMax:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    case ExprOp::kFloorDiv:
      if (!b.exact() || b.lo <= 0) break;
      return {apply(op, a.lo, b.lo), apply(op, a.hi, b.lo)};
    case ExprOp::kMod:
      if (!b.exact() || b.lo <= 0) break;
      if (apply(ExprOp::kFloorDiv, a.lo, b.lo) == apply(ExprOp::kFloorDiv, a.hi, b.lo)) {
        return {apply(op, a.lo, b.lo), apply(op, a.hi, b.lo)};
      }
      return {0, b.lo - 1};
    case ExprOp::kLt:
      if (a.hi < b.lo) return {1, 1};
      if (a.lo >= b.hi) return {0, 0};
      return {0, 1};
    case ExprOp::kLe:
      if (a.hi <= b.lo) return {1, 1};
      if (a.lo > b.hi) return {0, 0};
      return {0, 1};
    case ExprOp::kEq:
      if (a.hi < b.lo || b.hi < a.lo) return {0, 0};
      return {0, 1};
    case ExprOp::kAnd:
      if ((a.exact() && a.lo == 0) || (b.exact() && b.lo == 0)) return {0, 0};
      return {0, 1};
    case ExprOp::kOr:
      if ((a.exact() && a.lo != 0) || (b.exact() && b.lo != 0)) return {1, 1};
      return {0, 1};
    default:
      break;
  }
  throw DependsOnTable{"division"};
}

ValueRange EvalScope::range(const Expr& expr) {
  if (region_ != nullptr && goes_by_table(expr)) return open_range(expr);
  if (region_ != nullptr) {
    std::int64_t v = region_->pin(form(expr));
    return {v, v};
  }
  if (num_open_ > 0 || uses_table(expr)) return open_range(expr);
  std::int64_t v = eval(expr, vars_);
  return {v, v};
}

// Nothing is decided of what sizes make: that is no entry.
bool EvalScope::is_known(const Expr& expr) {
  return (region_ != nullptr && !goes_by_table(expr)) || range(expr).exact();
}

std::optional<TablePoint> EvalScope::table_point(const Expr& expr, bool of_region) {
  if (of_region) return point_in_region(expr);
  if (!expr.has_value() || is_known(expr)) return std::nullopt;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) {
    if (n.args.size() != 1) return std::nullopt;
    ValueRange index = range(n.args[0]);
    if (!index.exact()) return std::nullopt;
    return TablePoint{.table = static_cast<int>(n.value), .entry = index.lo};
  }
  if (n.op == ExprOp::kVar) {
    auto it = points_.find(static_cast<int>(n.value));
    return it == points_.end() ? std::nullopt : std::optional(it->second);
  }
  return affine_point(n, [&](const Expr& open) { return table_point(open); });
}

template <typename PointOf>
std::optional<TablePoint> EvalScope::affine_point(const ExprNode& n, const PointOf& point_of) {
  if (n.op != ExprOp::kAdd && n.op != ExprOp::kSub && n.op != ExprOp::kMul) return std::nullopt;
  bool left = !is_known(n.args[0]);
  if (n.op == ExprOp::kSub && !left) return std::nullopt;
  const Expr& other = n.args[left ? 1 : 0];
  std::optional<TablePoint> p = point_of(n.args[left ? 0 : 1]);
  if (!p) return std::nullopt;
  // Parts and blocks are told apart by numbers, and sizes decided for it. Of a range an entry that
  // is moved by what sizes make is one of its values, and nothing else is said of it.
  bool in_range = program_->tensors[at(p->table)].contract.kind == ContractKind::kRange;
  if (in_range && region_ != nullptr && region_->masks_open() && is_open_by_size(other)) {
    return std::nullopt;
  }
  ValueRange by = range(other);
  if (!by.exact()) return std::nullopt;
  if (n.op == ExprOp::kMul) {
    p->scale *= by.lo;
    p->offset *= by.lo;
  } else {
    p->offset += n.op == ExprOp::kAdd ? by.lo : -by.lo;
  }
  return p;
}

std::optional<TablePoint> EvalScope::point_in_region(const Expr& expr) {
  const ExprNode& n = expr.node();
  if (!goes_by_table(expr)) return std::nullopt;
  if (n.op == ExprOp::kVar) return point_in_region(origin_of(static_cast<int>(n.value)));
  if (n.op == ExprOp::kTable) {
    if (n.args.size() != 1 || goes_by_table(n.args[0])) return std::nullopt;
    return TablePoint{.table = static_cast<int>(n.value), .entry = region_->pin(form(n.args[0]))};
  }
  if (n.op != ExprOp::kAdd && n.op != ExprOp::kSub) return std::nullopt;
  bool left = goes_by_table(n.args[0]), right = goes_by_table(n.args[1]);
  if (left == right || (n.op == ExprOp::kSub && right)) return std::nullopt;
  std::optional<TablePoint> p = point_in_region(n.args[left ? 0 : 1]);
  if (!p) return std::nullopt;
  std::int64_t by = region_->pin(form(n.args[left ? 1 : 0]));
  p->offset += n.op == ExprOp::kAdd ? by : -by;
  return p;
}

std::optional<TablePoint> EvalScope::quotient_point(const Expr& expr, std::int64_t by) {
  if (by == 1) return table_point(expr);
  if (!expr.has_value() || range(expr).exact()) return std::nullopt;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    const Expr* value = definition(static_cast<int>(n.value));
    return value == nullptr ? std::nullopt : quotient_point(*value, by);
  }
  if (n.op == ExprOp::kFloorDiv && n.args[1].is_const(by)) return entry_point(n.args[0]);
  return affine_point(n, [&](const Expr& open) { return quotient_point(open, by); });
}

std::optional<TablePoint> EvalScope::remainder_point(const Expr& expr, std::int64_t by) {
  if (!expr.has_value()) return std::nullopt;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    const Expr* value = definition(static_cast<int>(n.value));
    return value == nullptr ? std::nullopt : remainder_point(*value, by);
  }
  bool divides = n.op == ExprOp::kMod && n.args[1].is_const(by);
  return divides ? entry_point(n.args[0]) : std::nullopt;
}

std::optional<TablePoint> EvalScope::entry_point(const Expr& expr) {
  std::optional<TablePoint> p = table_point(expr);
  return p && p->scale == 1 && p->offset == 0 ? p : std::nullopt;
}

ValueRange EvalScope::open_range(const Expr& expr) {
  const ExprNode& n = expr.node();
  bool entry = n.op == ExprOp::kTable;
  if (region_ != nullptr && !entry && !goes_by_table(expr)) return sized_range(expr);
  switch (n.op) {
    case ExprOp::kConst:
      return {n.value, n.value};
    case ExprOp::kVar: {
      auto v = static_cast<std::size_t>(n.value);
      if (region_ != nullptr) return open_range(origin_of(static_cast<int>(n.value)));
      if (open_[v] && !supposed_.empty()) {
        auto it = definitions_.find(static_cast<int>(n.value));
        if (it != definitions_.end()) return open_range(it->second);
      }
      return open_[v] ? ranges_[v] : ValueRange{vars_[v], vars_[v]};
    }
    case ExprOp::kTable:
      return table_range(n);
    case ExprOp::kNot: {
      ValueRange a = open_range(n.args[0]);
      if (a.exact()) return {a.lo == 0, a.lo == 0};
      return {0, 1};
    }
    case ExprOp::kSelect: {
      ValueRange c = range(n.args[0]);
      if (c.exact()) return open_range(n.args[c.lo != 0 ? 1 : 2]);
      ValueRange a = open_range(n.args[1]), b = open_range(n.args[2]);
      return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    }
    default:
      if (n.op == ExprOp::kSub) return difference(n);
      if (n.op == ExprOp::kLt || n.op == ExprOp::kLe) {
        if (std::optional<bool> known = ascends(n)) return {*known, *known};
      }
      if (n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod) {  // by one number
        return binary_range(n.op, open_range(n.args[0]), range(n.args[1]));
      }
      return binary_range(n.op, open_range(n.args[0]), open_range(n.args[1]));
  }
}

// Where masks are open nothing is decided for the sake of a range.
ValueRange EvalScope::sized_range(const Expr& expr) {
  return region_->masks_open() ? range_of(clauses(expr)) : range(expr);
}

// Entry i plus c is at most entry j plus d where i <= j and c <= d.
std::optional<bool> EvalScope::ascends(const ExprNode& node) {
  if (witness_ != nullptr) return std::nullopt;
  std::optional<TablePoint> a = table_point(node.args[0]), b = table_point(node.args[1]);
  if (!a || !b || a->table != b->table || a->scale != b->scale || a->scale <= 0) {
    return std::nullopt;
  }
  const Tensor& table = program_->tensors[static_cast<std::size_t>(a->table)];
  if (!is_steady_table(table) || (!is_ascending(a->table) && a->entry != b->entry)) {
    return std::nullopt;
  }
  bool a_first = a->entry <= b->entry && a->offset <= b->offset;
  bool b_first = b->entry <= a->entry && b->offset <= a->offset;
  if (node.op == ExprOp::kLt) return b_first ? std::optional(false) : std::nullopt;
  return a_first ? std::optional(true) : std::nullopt;
}

bool EvalScope::is_ascending(int table) const {
  ContractKind kind = program_->tensors[static_cast<std::size_t>(table)].contract.kind;
  return kind == ContractKind::kAscending || kind == ContractKind::kPartition;
}

ValueRange EvalScope::difference(const ExprNode& node) {
  ValueRange from = open_range(node.args[0]), less = open_range(node.args[1]);
  ValueRange all = binary_range(node.op, from, less);
  if (from.exact() || less.exact() || witness_ != nullptr) return all;
  std::optional<TablePoint> a = table_point(node.args[0]), b = table_point(node.args[1]);
  if (!a || !b || a->table != b->table || a->scale != b->scale || a->scale <= 0) return all;
  if (!is_steady_table(program_->tensors[static_cast<std::size_t>(a->table)])) return all;
  std::int64_t least = a->offset - b->offset;
  if (a->entry == b->entry) return {least, least};
  if (is_ascending(a->table) && a->entry > b->entry) all.lo = std::max(all.lo, least);
  if (is_ascending(a->table) && a->entry < b->entry) all.hi = std::min(all.hi, least);
  return all;
}

std::optional<TablePoint> EvalScope::rows_of_part(const Expr& expr) {
  if (range(expr).exact()) return std::nullopt;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    auto it = definitions_.find(static_cast<int>(n.value));
    return it == definitions_.end() ? std::nullopt : rows_of_part(it->second);
  }
  if (n.op != ExprOp::kAdd && n.op != ExprOp::kSub) return std::nullopt;
  bool left = !range(n.args[0]).exact(), right = !range(n.args[1]).exact();
  if (left && right) {
    std::optional<TablePoint> end = table_point(n.args[0]), begin = table_point(n.args[1]);
    if (n.op == ExprOp::kAdd || !end || !begin || begin->scale != 1) return std::nullopt;
    const Tensor& table = program_->tensors[static_cast<std::size_t>(begin->table)];
    bool bounds = end->table == begin->table && end->scale == 1 && end->entry == begin->entry + 1 &&
                  table.contract.kind == ContractKind::kPartition && is_steady_table(table);
    begin->offset = end->offset - begin->offset;
    return bounds ? begin : std::nullopt;
  }
  if (n.op == ExprOp::kSub && !left) return std::nullopt;
  std::optional<TablePoint> rows = rows_of_part(n.args[left ? 0 : 1]);
  std::int64_t more = range(n.args[left ? 1 : 0]).lo;
  if (rows) rows->offset += n.op == ExprOp::kAdd ? more : -more;
  return rows;
}

std::optional<TableEntry> EvalScope::open_entry(const Expr& expr, const std::vector<bool>& tables) {
  if (!expr.has_value()) return std::nullopt;
  // What the other factors are is not decided.
  bool known = region_ != nullptr ? !goes_by_table(expr) : range(expr).exact();
  if (known) return std::nullopt;
  const ExprNode& n = expr.node();
  for (const Expr& arg : n.args) {
    if (auto entry = open_entry(arg, tables)) return entry;
  }
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (region_ != nullptr) return open_entry(origin_of(var), tables);
    auto it = definitions_.find(var);
    return it == definitions_.end() ? std::nullopt : open_entry(it->second, tables);
  }
  if (n.op != ExprOp::kTable || !tables[static_cast<std::size_t>(n.value)]) return std::nullopt;
  TableEntry entry{.table = static_cast<int>(n.value), .index = {}};
  for (const Expr& arg : n.args) {
    ValueRange index = range(arg);
    if (!index.exact()) return std::nullopt;
    entry.index.push_back(index.lo);
  }
  return entry;
}

std::optional<std::string> EvalScope::text(const Expr& expr) {
  ValueRange r = range(expr);
  if (r.exact()) return std::to_string(r.lo);
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (region_ != nullptr) return text(origin_of(var));
    auto it = definitions_.find(var);
    return it == definitions_.end() ? std::nullopt : text(it->second);
  }
  std::string args;
  for (const Expr& arg : n.args) {
    std::optional<std::string> one = text(arg);
    if (!one) return std::nullopt;
    args += (args.empty() ? "" : ", ") + *one;
  }
  if (n.op != ExprOp::kTable) return fmt::format("{}({})", word(n.op), args);
  const Tensor& table = program_->tensors[static_cast<std::size_t>(n.value)];
  if (!is_steady_table(table)) return std::nullopt;
  return fmt::format("'{}'[{}]", table.name, args);
}

}  // namespace stretto
