// Which sizes do as one of them does. While a program is expanded at one vector of sizes, each
// value that sizes reach is held as an affine form of the sizes, and whatever is decided by such a
// value narrows the region of sizes in which the same is decided: comparisons, min, max, quotients,
// remainders, tile counts, thresholds, channels, shapes. In what is left every launch synchronises
// alike, and boxes begin and end at affine forms of the sizes; where no two ends of boxes on one
// axis of a tensor change places either, all that is asked of one launch has one answer.
//
// A size m is written L q + r or L q - r with small L (size_boundaries.h), q and r counting as
// sizes by themselves, so that a rank's share of m rows is affine, too; or in more such digits.
// Used by expand.h; sizes that do not do as the first did are looked at next (size_partition.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "stretto/ir/expr.h"

namespace stretto {

// Of the sizes of a program, with several each where they are divided.
inline constexpr int kMaxSizeAxes = 6;

// What the values of extents are made of.
struct SizeAxes {
  // m = the sum of weight * point[axis]. The weights fall to 1, and each is a multiple of the next;
  // all digits but the first are below the quotient of the weight before and their own. Or there
  // are two, the second of which has the weight -1: what m lacks of a multiple of the first.
  struct Digit {
    int axis = 0;
    std::int64_t weight = 1;
  };
  struct Extent {
    std::vector<Digit> digits;
    bool is_short_of() const { return digits.back().weight < 0; }
  };
  std::vector<Extent> extents;
  int count = 0;
};

using SizePoint = std::array<std::int64_t, kMaxSizeAxes>;
std::vector<std::int64_t> extents_at(const SizeAxes& axes, const SizePoint& point);

// Of roles that wait for signals under conditions by size: which of these are not decided.
enum class WaitsOpen { kAll, kCostly, kNone };

// All points between two, both included.
struct SizeBox {
  SizePoint lo{}, hi{};
  bool is_point(int axis) const {
    return lo[static_cast<std::size_t>(axis)] == hi[static_cast<std::size_t>(axis)];
  }
};

// value + sum of slope[i] * (point[i] - sample[i]).
struct SizeForm {
  std::int64_t value = 0;
  SizePoint slope{};
  bool is_constant() const { return same_slope(SizePoint{}); }
  // Some tens of millions of times where a program is large: a library call would take longer.
  bool same_slope(const SizePoint& other) const {
    std::int64_t differ = 0;
    for (std::size_t i = 0; i < slope.size(); ++i) differ |= slope[i] ^ other[i];
    return differ == 0;
  }
  friend bool operator==(const SizeForm& a, const SizeForm& b) {
    return a.value == b.value && a.same_slope(b.slope);
  }
};

class SizeRegion {
 public:
  // `box` around `sample`.
  SizeRegion(const SizeAxes& axes, const SizeBox& box, const SizePoint& sample)
      : axes_(axes), box_(box), sample_(sample) {}

  const SizeBox& box() const { return box_; }
  const SizePoint& sample() const { return sample_; }
  int num_axes() const { return axes_.count; }
  // Boxes may be cut off in different tiles at different sizes (size_masks.h): their ends do not
  // narrow the region. Nor do conditions (size_conditions.h), but for those of roles that wait
  // under one, as `waits_open` says: costly are those that would cut off many sizes.
  void leave_masks_open(WaitsOpen waits_open) {
    masks_open_ = true;
    waits_open_ = waits_open;
  }
  bool masks_open() const { return masks_open_; }
  WaitsOpen waits_open() const { return waits_open_; }
  // Nor does how often loops over slots run (open_loops.h).
  void leave_loops_open() { loops_open_ = true; }
  bool loops_open() const { return masks_open_ && loops_open_; }

  // Whether some extent is written as what it lacks of a multiple.
  bool is_short_of() const {
    return std::ranges::any_of(axes_.extents, [](const auto& e) { return e.is_short_of(); });
  }

  SizeForm extent(std::size_t number) const;
  // How often something has been cut off so far, and how many sizes are left.
  int num_cuts() const { return num_cuts_; }
  double num_sizes() const;

  // What `op` makes of two forms, in what is left of the region afterwards.
  SizeForm apply(ExprOp op, const SizeForm& a, const SizeForm& b);
  // The region that is left has this value alone.
  std::int64_t pin(const SizeForm& form);
  // ... or keeps the order of the two, and whether they are equal.
  void keep_order(const SizeForm& a, const SizeForm& b);
  // ... or keeps it at least zero, or below.
  void keep_sign(const SizeForm& form);

  // The least and the most that it is in the region.
  std::int64_t least(const SizeForm& form) const;
  std::int64_t most(const SizeForm& form) const;

  // The quotient by a number above zero, where nothing is cut off for it to be a form.
  std::optional<SizeForm> quotient(const SizeForm& form, std::int64_t by) const;
  // Wherever `x` is positive in the region, `y` is, too; false where that is not seen.
  bool positive_with(const SizeForm& x, const SizeForm& y) const;

  // Whether the form, which goes by one extent alone, is positive at all of its values but zero.
  bool positive_but_at_zero(const SizeForm& form) const;

  // Notes where a box begins or ends, on an axis of a rank's tensor.
  void note_end(int tensor, int rank, int dim, const SizeForm& end);
  // What is at `value` there; absent where nothing has been noted.
  const SizeForm* end_at(int tensor, int rank, int dim, std::int64_t value) const;
  // The region that is left keeps the order of all ends.
  void keep_all_orders();
  // Nothing but the sample is left.
  void keep_sample_alone() {
    for (int i = 0; i < axes_.count; ++i) fix(i);
  }

 private:
  using Axis = std::tuple<int, int, int>;

  SizeForm linear(const SizeForm& a, std::int64_t by_a, const SizeForm& b, std::int64_t by_b);
  SizeForm divided(const SizeForm& a, std::int64_t by, bool remainder);
  // Keeps form >= least, which is so at the sample.
  void keep_at_least(const SizeForm& form, std::int64_t least);
  void fix(int axis) {
    auto i = static_cast<std::size_t>(axis);
    bool is_point = box_.is_point(axis);
    num_cuts_ += is_point ? 0 : 1;
    box_.lo[i] = box_.hi[i] = sample_[i];
  }

  SizeAxes axes_;
  SizeBox box_;
  SizePoint sample_;
  bool masks_open_ = false, loops_open_ = false;
  WaitsOpen waits_open_ = WaitsOpen::kNone;
  int num_cuts_ = 0;
  std::map<Axis, std::map<std::int64_t, SizeForm>> ends_;
};

}  // namespace stretto
