#include "stretto/proof/overlap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace stretto {
namespace {

using Indices = std::vector<std::size_t>;
using Interval = std::pair<std::int64_t, std::int64_t>;

// So few pairs are looked at one by one.
constexpr std::size_t kFewPairs = 64;

// Pairs of boxes that overlap. In a dimension in which any two are alike or apart, as heads are,
// those that are alike are looked at by themselves; in another one they are gone through from the
// first to the last.
class Overlaps {
 public:
  Overlaps(const std::vector<Box>& a, const std::vector<Box>& b,
           const std::function<void(std::size_t, std::size_t)>& fn)
      : a_(a), b_(b), fn_(fn) {}

  // Of these, which are alike in the dimensions that are `done`.
  void find(const Indices& of_a, const Indices& of_b, std::array<bool, kMaxTensorDims> done) {
    if (of_a.empty() || of_b.empty()) return;
    if (of_a.size() * of_b.size() <= kFewPairs) return one_by_one(of_a, of_b);
    std::size_t sweep = 0, most_starts = 0, split = kMaxTensorDims, most_parts = 1;
    for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
      if (done[d]) continue;
      std::vector<Interval> all = intervals(of_a, of_b, d);
      std::size_t starts = num_starts(all);
      if (starts > most_starts) {
        most_starts = starts;
        sweep = d;
      }
      if (all.size() > most_parts && are_apart(all)) {
        most_parts = all.size();
        split = d;
      }
    }
    if (split == kMaxTensorDims) return go_through(of_a, of_b, sweep);
    done[split] = true;
    Indices in_a = by_start(a_, of_a, split), in_b = by_start(b_, of_b, split);
    for (std::size_t i = 0, j = 0; i < in_a.size() && j < in_b.size();) {
      std::int64_t at_a = a_[in_a[i]].lo[split], at_b = b_[in_b[j]].lo[split];
      std::int64_t start = std::max(at_a, at_b);
      Indices here_a = taken(a_, in_a, i, split, start), here_b = taken(b_, in_b, j, split, start);
      find(here_a, here_b, done);
    }
  }

 private:
  void one_by_one(const Indices& of_a, const Indices& of_b) {
    for (std::size_t i : of_a) {
      for (std::size_t j : of_b) {
        if (overlaps(a_[i], b_[j])) fn_(i, j);
      }
    }
  }

  // Each once, in order.
  std::vector<Interval> intervals(const Indices& of_a, const Indices& of_b, std::size_t d) const {
    std::vector<Interval> out;
    auto add = [&](const Box& box) {
      Interval one{box.lo[d], box.hi[d]};
      if (out.empty() || out.back() != one) out.push_back(one);
    };
    for (std::size_t i : of_a) add(a_[i]);
    for (std::size_t j : of_b) add(b_[j]);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  static std::size_t num_starts(const std::vector<Interval>& sorted) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      n += i == 0 || sorted[i].first != sorted[i - 1].first ? 1 : 0;
    }
    return n;
  }

  static bool are_apart(const std::vector<Interval>& sorted) {
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (sorted[i].first >= sorted[i].second) return false;  // an empty one may lie within others
      if (i > 0 && sorted[i].first < sorted[i - 1].second) return false;
    }
    return true;
  }

  static Indices by_start(const std::vector<Box>& boxes, Indices order, std::size_t d) {
    std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
      return std::pair(boxes[i].lo[d], i) < std::pair(boxes[j].lo[d], j);
    });
    return order;
  }

  // Those that begin at `start`; on to those that begin behind it.
  static Indices taken(const std::vector<Box>& boxes, const Indices& order, std::size_t& next,
                       std::size_t d, std::int64_t start) {
    Indices out;
    for (; next < order.size() && boxes[order[next]].lo[d] <= start; ++next) {
      if (boxes[order[next]].lo[d] == start) out.push_back(order[next]);
    }
    return out;
  }

  void go_through(const Indices& of_a, const Indices& of_b, std::size_t d) {
    Indices order_a = by_start(a_, of_a, d), order_b = by_start(b_, of_b, d), open_a, open_b;
    auto close = [d](Indices& open, const std::vector<Box>& boxes, std::int64_t now) {
      std::erase_if(open, [&](std::size_t i) { return boxes[i].hi[d] <= now; });
    };
    std::size_t i = 0, j = 0;
    while (i < order_a.size() || j < order_b.size()) {
      bool take_a = j == order_b.size() ||
                    (i < order_a.size() && a_[order_a[i]].lo[d] <= b_[order_b[j]].lo[d]);
      if (take_a) {
        std::size_t next = order_a[i++];
        close(open_b, b_, a_[next].lo[d]);
        for (std::size_t k : open_b) {
          if (overlaps(a_[next], b_[k])) fn_(next, k);
        }
        open_a.push_back(next);
      } else {
        std::size_t next = order_b[j++];
        close(open_a, a_, b_[next].lo[d]);
        for (std::size_t k : open_a) {
          if (overlaps(a_[k], b_[next])) fn_(k, next);
        }
        open_b.push_back(next);
      }
    }
  }

  const std::vector<Box>&a_, &b_;
  const std::function<void(std::size_t, std::size_t)>& fn_;
};

Indices all_of(const std::vector<Box>& boxes) {
  Indices out(boxes.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

}  // namespace

void for_each_overlap(const std::vector<Box>& a, const std::vector<Box>& b,
                      const std::function<void(std::size_t, std::size_t)>& fn) {
  Overlaps(a, b, fn).find(all_of(a), all_of(b), {});
}

std::vector<Box> uncovered(const Box& box, const std::vector<Box>& pieces) {
  std::vector<Box> rest;
  if (!is_empty(box)) rest.push_back(box);
  for (const Box& piece : pieces) {
    std::vector<Box> next;
    for (Box r : rest) {
      if (!overlaps(r, piece)) {
        next.push_back(r);
        continue;
      }
      for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
        Box below = r, above = r;
        below.hi[d] = std::min(r.hi[d], piece.lo[d]);
        above.lo[d] = std::max(r.lo[d], piece.hi[d]);
        if (!is_empty(below)) next.push_back(below);
        if (!is_empty(above)) next.push_back(above);
        r.lo[d] = std::max(r.lo[d], piece.lo[d]);
        r.hi[d] = std::min(r.hi[d], piece.hi[d]);
      }
    }
    rest = std::move(next);
    if (rest.empty()) break;
  }
  return rest;
}

}  // namespace stretto
