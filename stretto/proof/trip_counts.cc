#include "stretto/proof/trip_counts.h"

#include <algorithm>

#include "stretto/ir/expr_arithmetic.h"

namespace stretto {
namespace {

// Of an operation, one after the other.
constexpr std::int64_t kMostPoints = std::int64_t{1} << 22;

[[noreturn]] void refuse() { throw DependsOnTable{"how often a loop over slots runs"}; }

// The variable that `expr` comes to `value` by, and its least value that does it.
std::pair<int, std::int64_t> solve(EvalScope& scope, const Expr& expr, std::int64_t value) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) return {static_cast<int>(n.value), value};
  bool sum = n.op == ExprOp::kAdd || n.op == ExprOp::kSub;
  if (!sum && n.op != ExprOp::kFloorDiv) refuse();
  bool left = !scope.range(n.args[0]).exact();
  ValueRange by = scope.range(n.args[left ? 1 : 0]);
  if (!by.exact() || (!left && n.op != ExprOp::kAdd)) refuse();
  const Expr& open = n.args[left ? 0 : 1];
  if (sum) return solve(scope, open, value + (n.op == ExprOp::kAdd ? -by.lo : by.lo));
  if (by.lo <= 0) refuse();
  return solve(scope, open, value * by.lo);
}

// `of`, for numbers 0, 1, 2 and so on, goes on from `walked` as it did over the `step` before.
void check_goes_on(const std::vector<std::optional<std::int64_t>>& of, std::int64_t walked,
                   std::int64_t step) {
  auto w = static_cast<std::size_t>(walked), s = static_cast<std::size_t>(step);
  for (std::size_t n = w + 1; n < of.size(); ++n) {
    if (!of[n] || !of[n - s] || *of[n] - *of[n - s] != *of[w] - *of[w - s]) refuse();
  }
}

}  // namespace

void TripCounts::start_worker(std::int64_t walked, std::int64_t step) {
  walked_ = walked;
  step_ = step;
  bounds_.clear();
  values_.clear();
  of_unit_.clear();
}

void TripCounts::start_agent() {
  fixed_.clear();
  computed_.clear();
  loop_ = nullptr;
}

void TripCounts::let(int var, const Expr& definition) {
  fixed_.erase(var);
  computed_.erase(var);
  if (!scope_.is_open(var)) {
    if (goes_by(definition) >= 0) computed_[var] = definition;
    return;
  }
  if (values_.empty()) return;
  std::optional<std::string> text = scope_.text(definition);
  auto known = text ? values_.find(*text) : values_.end();
  if (known == values_.end()) return;
  scope_.set(var, known->second.first);
  fixed_[var] = known->second.second;
}

void TripCounts::fix(const Op& loop) {
  const Expr &begin = loop.exprs[0], &end = loop.exprs[1];
  Bounds all{begin, end, scope_.range(begin), scope_.range(end)};
  int idx = static_cast<int>(bounds_.size());
  if (!all.begins.exact()) fix(begin, all.begins.lo, idx);
  if (scope_.range(end).exact() != all.ends.exact()) refuse();
  if (!all.ends.exact()) fix(end, std::min(all.begins.lo + *wanted_, all.ends.hi), idx);
  bounds_.push_back(all);
}

void TripCounts::fix(const Expr& bound, std::int64_t value, int bounds) {
  auto [var, wanted] = solve(scope_, bound, value);
  const Expr* definition = scope_.definition(var);
  std::optional<std::string> text;
  if (definition != nullptr) text = scope_.text(*definition);
  if (!text) refuse();
  ValueRange range = scope_.range(Expr::var(var));
  std::int64_t given = std::clamp(wanted, range.lo, range.hi);
  scope_.set(var, given);
  if (scope_.value(bound, "how often a loop over slots runs") != value) refuse();
  values_[*text] = {given, bounds};
  fixed_[var] = bounds;
}

int TripCounts::goes_by(const Expr& expr) {
  if (!expr.has_value()) return -1;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (loop_ != nullptr && loop_->var == var) return goes_by(loop_->exprs);
    if (auto it = fixed_.find(var); it != fixed_.end()) return it->second;
    auto it = computed_.find(var);
    return it == computed_.end() ? -1 : goes_by(it->second);
  }
  return goes_by(n.args);
}

int TripCounts::goes_by(const std::vector<Expr>& exprs) {
  int found = -1;
  for (const Expr& e : exprs) {
    int one = goes_by(e);
    if (one >= 0 && found >= 0 && one != found) refuse();
    found = std::max(found, one);
  }
  return found;
}

void TripCounts::enter(const Op& loop, const Unit& unit) {
  int by = goes_by(loop.exprs);
  if (by < 0) return;
  if (loop_ != nullptr || of_unit_.try_emplace(unit, by).first->second != by) refuse();
  check(loop, bounds_[static_cast<std::size_t>(by)]);
  loop_ = &loop;
}

void TripCounts::leave(const Op& loop) {
  if (loop_ == &loop) loop_ = nullptr;
}

void TripCounts::meet(const Op& when) {
  int by = goes_by(when.exprs);
  if (by < 0) return;
  const Bounds& bounds = bounds_[static_cast<std::size_t>(by)];
  loop_ != nullptr ? check_in_loop(when, bounds) : check(when, bounds);
}

// The value of an expression that goes by a loop's bounds.
std::int64_t TripCounts::at(const Expr& expr, const Bounds& bounds, const Point& point) const {
  if (bounds.end.same(expr)) return point.end;
  if (!bounds.begins.exact() && bounds.begin.same(expr)) return point.begin;
  const ExprNode& n = expr.node();
  auto arg = [&](std::size_t i) { return at(n.args[i], bounds, point); };
  switch (n.op) {
    case ExprOp::kConst:
      return n.value;
    case ExprOp::kVar: {
      auto var = static_cast<int>(n.value);
      if (loop_ != nullptr && loop_->var == var) return point.iteration;
      if (fixed_.count(var) > 0) refuse();
      auto it = computed_.find(var);
      if (it != computed_.end()) return at(it->second, bounds, point);
      if (scope_.is_open(var)) refuse();
      return scope_.get(var);
    }
    case ExprOp::kTable:
      refuse();
    case ExprOp::kNot:
      return arg(0) == 0 ? 1 : 0;
    case ExprOp::kSelect:
      return arg(0) != 0 ? arg(1) : arg(2);
    default:
      return apply(n.op, arg(0), arg(1));
  }
}

std::int64_t TripCounts::trips_at(const Op& loop, const Bounds& bounds, const Point& point) const {
  return std::max<std::int64_t>(
      at(loop.exprs[1], bounds, point) - at(loop.exprs[0], bounds, point), 0);
}

void TripCounts::known_values(const Expr& expr, std::vector<std::int64_t>& values) const {
  const ExprNode& n = expr.node();
  for (const Expr& arg : n.args) known_values(arg, values);
  if (n.op != ExprOp::kVar) return;
  auto var = static_cast<int>(n.value);
  auto it = computed_.find(var);
  if (it != computed_.end()) return known_values(it->second, values);
  bool moves = fixed_.count(var) > 0 || (loop_ != nullptr && loop_->var == var);
  if (!moves && !scope_.is_open(var)) values.push_back(scope_.get(var));
}

// Whether the operation has not been looked at yet with such bounds and such other values.
bool TripCounts::is_new(const Op& op, const Bounds& bounds) {
  std::vector<std::int64_t> values = {bounds.begins.lo, bounds.begins.hi, bounds.ends.lo,
                                      bounds.ends.hi};
  for (const Expr& e : op.exprs) known_values(e, values);
  if (loop_ != nullptr) {
    for (const Expr& e : loop_->exprs) known_values(e, values);
  }
  return checked_.insert({&op, values}).second;
}

// use(n, point) for all that the bounds may be, of n iterations.
template <typename Use>
void TripCounts::for_each_point(const Bounds& bounds, const Use& use) const {
  std::int64_t begins = bounds.begins.hi - bounds.begins.lo + 1;
  std::int64_t ends = bounds.ends.hi - bounds.ends.lo + 1;
  if (begins > kMostPoints / ends) refuse();
  for (std::int64_t b = bounds.begins.lo; b <= bounds.begins.hi; ++b) {
    for (std::int64_t e = bounds.ends.lo; e <= bounds.ends.hi; ++e) {
      use(static_cast<std::size_t>(std::max<std::int64_t>(e - b, 0)), Point{b, e, 0});
    }
  }
}

void TripCounts::check(const Op& op, const Bounds& bounds) {
  if (!is_new(op, bounds)) return;
  std::vector<std::optional<std::int64_t>> of;  // by number: iterations, or whether it is so
  for_each_point(bounds, [&](std::size_t n, const Point& point) {
    if (n >= of.size()) of.resize(n + 1);
    std::int64_t value = op.code == OpCode::kLoop ? trips_at(op, bounds, point)
                                                  : at(op.exprs[0], bounds, point);
    if (of[n] && *of[n] != value) refuse();
    of[n] = value;
  });
  check_goes_on(of, walked_, step_);
}

// For every number the condition has the truths in a row that it has for `step` iterations less,
// and some in between that repeat those before them.
void TripCounts::check_in_loop(const Op& when, const Bounds& bounds) {
  if (!is_new(when, bounds)) return;
  std::vector<std::optional<std::vector<bool>>> of;  // by number, of each iteration
  std::int64_t looked_at = 0;
  for_each_point(bounds, [&](std::size_t n, Point point) {
    if (n >= of.size()) of.resize(n + 1);
    std::vector<bool> truths;
    std::int64_t first = at(loop_->exprs[0], bounds, point);
    std::int64_t trips = trips_at(*loop_, bounds, point);
    if ((looked_at += trips) > kMostPoints) refuse();
    for (std::int64_t i = 0; i < trips; ++i) {
      point.iteration = first + i;
      truths.push_back(at(when.exprs[0], bounds, point) != 0);
    }
    if (of[n] && *of[n] != truths) refuse();
    of[n] = std::move(truths);
  });
  auto w = static_cast<std::size_t>(walked_), s = static_cast<std::size_t>(step_);
  for (std::size_t n = w + 1; n < of.size(); ++n) {
    if (!of[n] || !of[n - s] || !of[w - s] || of[n]->size() < of[n - s]->size()) refuse();
    const std::vector<bool>& before = *of[n - s];
    std::size_t more = of[n]->size() - before.size(), kept = of[w - s]->size();
    for (std::size_t i = 0; i < of[n]->size(); ++i) {
      bool inserted = i >= kept;
      if (inserted && i < more) refuse();
      if ((*of[n])[i] != before[inserted ? i - more : i]) refuse();
    }
  }
}

}  // namespace stretto
