#include "stretto/proof/size_region.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/ir/expr_arithmetic.h"

namespace stretto {
namespace {

// Forms that may get larger stand for the sample alone, so that no sum here leaves 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 40;

bool is_small(std::int64_t v) { return v > -kLargest && v < kLargest; }

}  // namespace

std::vector<std::int64_t> extents_at(const SizeAxes& axes, const SizePoint& point) {
  std::vector<std::int64_t> extents;
  for (const SizeAxes::Extent& e : axes.extents) {
    std::int64_t value = 0;
    for (const SizeAxes::Digit& d : e.digits) value += d.weight * point[at(d.axis)];
    extents.push_back(value);
  }
  return extents;
}

SizeForm SizeRegion::extent(std::size_t number) const {
  SizeForm form{.value = extents_at(axes_, sample_)[number]};
  for (const SizeAxes::Digit& d : axes_.extents[number].digits) form.slope[at(d.axis)] = d.weight;
  return form;
}

SizeForm SizeRegion::linear(const SizeForm& a, std::int64_t by_a, const SizeForm& b,
                            std::int64_t by_b) {
  bool small = is_small(a.value) && is_small(b.value) && is_small(by_a) && is_small(by_b);
  SizeForm out;
  for (std::size_t i = 0; i < out.slope.size() && small; ++i) {
    std::int64_t slope_a = 0, slope_b = 0;
    small = !__builtin_mul_overflow(a.slope[i], by_a, &slope_a) &&
            !__builtin_mul_overflow(b.slope[i], by_b, &slope_b) && is_small(slope_a) &&
            is_small(slope_b) && is_small(slope_a + slope_b);
    out.slope[i] = slope_a + slope_b;
  }
  if (!small) {
    keep_sample_alone();
    out.slope.fill(0);
  }
  std::int64_t of_a = stretto::apply(ExprOp::kMul, a.value, by_a);
  std::int64_t of_b = stretto::apply(ExprOp::kMul, b.value, by_b);
  out.value = stretto::apply(ExprOp::kAdd, of_a, of_b);
  return out;
}

namespace {

// Quotient and remainder, where the latter stays within the divisor.
std::pair<SizeForm, SizeForm> parts_of(const SizeForm& a, std::int64_t by) {
  SizeForm quotient{.value = floor_div(a.value, by)}, rest{.value = floor_mod(a.value, by)};
  for (std::size_t i = 0; i < a.slope.size(); ++i) {
    quotient.slope[i] = floor_div(2 * a.slope[i] + by, 2 * by);  // the nearest
    rest.slope[i] = a.slope[i] - by * quotient.slope[i];
  }
  return {quotient, rest};
}

}  // namespace

SizeForm SizeRegion::divided(const SizeForm& a, std::int64_t by, bool remainder) {
  auto [quotient, rest] = parts_of(a, by);
  keep_at_least(rest, 0);
  keep_at_least(linear(rest, -1, {}, 0), 1 - by);
  return remainder ? rest : quotient;
}

SizeForm SizeRegion::apply(ExprOp op, const SizeForm& a, const SizeForm& b) {
  if (a.is_constant() && b.is_constant()) return {.value = stretto::apply(op, a.value, b.value)};
  switch (op) {
    case ExprOp::kAdd:
      return linear(a, 1, b, 1);
    case ExprOp::kSub:
      return linear(a, 1, b, -1);
    case ExprOp::kMul:
      if (a.is_constant()) return linear(b, a.value, {}, 0);
      return linear(a, pin(b), {}, 0);
    case ExprOp::kFloorDiv:
    case ExprOp::kMod: {
      std::int64_t by = pin(b);
      if (by > 0 && is_small(by) && is_small(a.value)) return divided(a, by, op == ExprOp::kMod);
      return {.value = stretto::apply(op, pin(a), by)};
    }
    case ExprOp::kMin:
      keep_order(a, b);
      return a.value <= b.value ? a : b;
    case ExprOp::kMax:
      keep_order(a, b);
      return a.value >= b.value ? a : b;
    case ExprOp::kLt:
    case ExprOp::kLe:
    case ExprOp::kEq:
      keep_order(a, b);
      return {.value = stretto::apply(op, a.value, b.value)};
    default:
      return {.value = stretto::apply(op, pin(a), pin(b))};
  }
}

std::int64_t SizeRegion::pin(const SizeForm& form) {
  for (int i = 0; i < axes_.count; ++i) {
    if (form.slope[at(i)] != 0) fix(i);
  }
  return form.value;
}

void SizeRegion::keep_order(const SizeForm& a, const SizeForm& b) {
  if (a.same_slope(b.slope)) return;
  if (a.value == b.value) {
    for (int i = 0; i < axes_.count; ++i) {
      if (a.slope[at(i)] != b.slope[at(i)]) fix(i);
    }
    return;
  }
  keep_at_least(a.value < b.value ? linear(b, 1, a, -1) : linear(a, 1, b, -1), 1);
}

void SizeRegion::keep_sign(const SizeForm& form) {
  if (form.value >= 0) {
    keep_at_least(form, 0);
  } else {
    keep_at_least(linear({}, 0, form, -1), 1);
  }
}

std::optional<SizeForm> SizeRegion::quotient(const SizeForm& form, std::int64_t by) const {
  auto [quotient, rest] = parts_of(form, by);
  bool stays = least(rest) >= 0 && most(rest) < by;
  return stays ? std::optional(quotient) : std::nullopt;
}

// Where a y >= b x + 1 - b and x >= 1, y is at least 1.
bool SizeRegion::positive_with(const SizeForm& x, const SizeForm& y) const {
  constexpr std::int64_t kFactor = 1 << 10, kSlope = 1 << 20;  // sums stay within 64 bits
  auto moderate = [](const SizeForm& form) {
    return is_small(form.value) && std::ranges::all_of(form.slope, [](std::int64_t s) {
             return s > -kSlope && s < kSlope;
           });
  };
  if (!moderate(x) || !moderate(y)) return false;
  for (std::size_t i = 0; i < x.slope.size(); ++i) {
    if (x.slope[i] <= 0 || y.slope[i] <= 0) continue;
    std::int64_t common = std::gcd(x.slope[i], y.slope[i]);
    std::int64_t a = x.slope[i] / common, b = y.slope[i] / common;
    if (a >= kFactor || b >= kFactor) continue;
    SizeForm more{.value = a * y.value - b * x.value};
    for (std::size_t j = 0; j < more.slope.size(); ++j) {
      more.slope[j] = a * y.slope[j] - b * x.slope[j];
    }
    if (least(more) >= 1 - b) return true;
  }
  return false;
}

bool SizeRegion::positive_but_at_zero(const SizeForm& form) const {
  return std::ranges::any_of(axes_.extents, [&](const SizeAxes::Extent& extent) {
    SizeForm rest = form;
    std::int64_t least = kLargest;
    for (const SizeAxes::Digit& d : extent.digits) {
      std::int64_t slope = std::exchange(rest.slope[at(d.axis)], 0);
      rest.value -= slope * sample_[at(d.axis)];
      least = std::min(least, slope);
    }
    return rest.is_constant() && rest.value <= 0 && least >= 1 - rest.value;
  });
}

double SizeRegion::num_sizes() const {
  double n = 1;
  for (std::size_t i = 0; i < at(axes_.count); ++i) {
    n *= static_cast<double>(box_.hi[i] - box_.lo[i] + 1);
  }
  return n;
}

std::int64_t SizeRegion::least(const SizeForm& form) const {
  std::int64_t sum = form.value;
  for (std::size_t i = 0; i < form.slope.size(); ++i) {
    std::int64_t s = form.slope[i];
    if (s != 0) sum += std::min(s * (box_.lo[i] - sample_[i]), s * (box_.hi[i] - sample_[i]));
  }
  return sum;
}

std::int64_t SizeRegion::most(const SizeForm& form) const {
  SizeForm less{.value = -form.value};
  for (std::size_t i = 0; i < form.slope.size(); ++i) less.slope[i] = -form.slope[i];
  return -least(less);
}

// Cuts off, along the axis on which that costs the smallest part, what breaks the promise; where no
// axis does it alone, the one that breaks it most goes altogether.
void SizeRegion::keep_at_least(const SizeForm& form, std::int64_t least_value) {
  for (;;) {
    std::int64_t lacking = least_value - least(form);
    if (lacking <= 0) return;
    int best = -1, worst = -1;
    double best_part = 2;
    std::int64_t best_cut = 0, most_lost = 0;
    for (int axis = 0; axis < axes_.count; ++axis) {
      std::size_t i = at(axis);
      std::int64_t s = form.slope[i];
      if (s == 0) continue;
      std::int64_t step = s < 0 ? -s : s;
      std::int64_t reach = s < 0 ? box_.hi[i] - sample_[i] : sample_[i] - box_.lo[i];
      if (step * reach > most_lost) {
        most_lost = step * reach;
        worst = axis;
      }
      std::int64_t cut = ceil_div(lacking, step);
      if (cut > reach) continue;
      double part = static_cast<double>(cut) / static_cast<double>(box_.hi[i] - box_.lo[i] + 1);
      if (part >= best_part) continue;
      best = axis;
      best_part = part;
      best_cut = cut;
    }
    if (best < 0 && worst < 0) return;  // it was broken at the sample
    std::size_t i = at(best < 0 ? worst : best);
    bool high = form.slope[i] < 0;
    ++num_cuts_;
    if (best < 0) {
      (high ? box_.hi[i] : box_.lo[i]) = sample_[i];
    } else {
      (high ? box_.hi[i] : box_.lo[i]) += high ? -best_cut : best_cut;
    }
  }
}

void SizeRegion::note_end(int tensor, int rank, int dim, const SizeForm& end) {
  if (masks_open_) return;
  auto [it, is_new] = ends_[{tensor, rank, dim}].try_emplace(end.value, end);
  if (!is_new) keep_order(it->second, end);
}

const SizeForm* SizeRegion::end_at(int tensor, int rank, int dim, std::int64_t value) const {
  auto axis = ends_.find({tensor, rank, dim});
  if (axis == ends_.end()) return nullptr;
  auto it = axis->second.find(value);
  return it == axis->second.end() ? nullptr : &it->second;
}

void SizeRegion::keep_all_orders() {
  for (auto& [axis, ends] : ends_) {
    const SizeForm* before = nullptr;
    for (auto& [value, form] : ends) {
      // Axes that have been fixed meanwhile move nothing any more.
      for (int i = 0; i < axes_.count; ++i) {
        if (box_.is_point(i)) form.slope[at(i)] = 0;
      }
      if (before != nullptr) keep_order(*before, form);
      before = &form;
    }
  }
}

}  // namespace stretto
