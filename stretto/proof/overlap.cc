#include "stretto/proof/overlap.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace stretto {
namespace {

std::size_t best_dimension(const std::vector<Box>& a, const std::vector<Box>& b) {
  std::size_t best = 0, most = 0;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    std::set<std::int64_t> starts;
    for (const auto* boxes : {&a, &b}) {
      for (const Box& box : *boxes) starts.insert(box.lo[d]);
    }
    if (starts.size() > most) {
      most = starts.size();
      best = d;
    }
  }
  return best;
}

std::vector<std::size_t> by_start(const std::vector<Box>& boxes, std::size_t d) {
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t i, std::size_t j) { return boxes[i].lo[d] < boxes[j].lo[d]; });
  return order;
}

}  // namespace

void for_each_overlap(const std::vector<Box>& a, const std::vector<Box>& b,
                      const std::function<void(std::size_t, std::size_t)>& fn) {
  if (a.empty() || b.empty()) return;
  std::size_t d = best_dimension(a, b);
  std::vector<std::size_t> order_a = by_start(a, d), order_b = by_start(b, d), open_a, open_b;
  auto close = [d](std::vector<std::size_t>& open, const std::vector<Box>& boxes,
                   std::int64_t now) {
    std::erase_if(open, [&](std::size_t i) { return boxes[i].hi[d] <= now; });
  };
  std::size_t i = 0, j = 0;
  while (i < order_a.size() || j < order_b.size()) {
    bool take_a =
        j == order_b.size() || (i < order_a.size() && a[order_a[i]].lo[d] <= b[order_b[j]].lo[d]);
    if (take_a) {
      std::size_t next = order_a[i++];
      close(open_b, b, a[next].lo[d]);
      for (std::size_t k : open_b) {
        if (overlaps(a[next], b[k])) fn(next, k);
      }
      open_a.push_back(next);
    } else {
      std::size_t next = order_b[j++];
      close(open_a, a, b[next].lo[d]);
      for (std::size_t k : open_a) {
        if (overlaps(a[k], b[next])) fn(k, next);
      }
      open_b.push_back(next);
    }
  }
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
