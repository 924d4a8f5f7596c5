#include "stretto/proof/size_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/program.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/open_loops.h"
#include "stretto/proof/size_boundaries.h"

namespace stretto {
namespace {

// Divisors beyond this cut sizes into pieces instead, or make digits of their own.
constexpr std::int64_t kSmallDivisor = 16, kMostModulus = 64, kMostBlock = 4096;

// The least common multiple of those in [from, to], as far as it is at most `most`.
std::int64_t common(const std::set<std::int64_t>& divisors, std::int64_t from, std::int64_t to,
                    std::int64_t most) {
  std::int64_t modulus = 1;
  for (std::int64_t d : divisors) {
    if (d >= from && d <= to && std::lcm(modulus, d) <= most) modulus = std::lcm(modulus, d);
  }
  return modulus;
}

std::int64_t block_size(const Program& program) {
  return common(extent_divisors(program), kSmallDivisor + 1, kMostBlock, kMostBlock);
}

// m = modulus * q + r, or modulus * (block * q + s) + r, where there is room for that. Or all
// digits but the first are what m lacks of a multiple: modulus * q - r, so that a share that is
// rounded up is q for all r; or modulus * (block * q - s) - r, so that q blocks hold it for all r
// and s.
SizeAxes axes_of(const Program& program, const std::optional<LeftOpen>& left_open) {
  SizeAxes axes;
  bool open = left_open.has_value(), blocks = open && left_open->blocks;
  // Where masks are open, tiles are numbers, whatever they are divided by.
  std::set<std::int64_t> divisors = open ? extent_divisors(program) : size_divisors(program);
  std::int64_t modulus = common(divisors, 2, kSmallDivisor, kMostModulus);
  std::int64_t block = blocks ? block_size(program) : 1;
  for (std::int64_t bound : extent_bounds(program)) {
    std::vector<std::int64_t> weights = {1};
    if (modulus > 1 && bound >= 4 * modulus) weights.push_back(modulus);
    if (block > 1 && bound >= 2 * weights.back() * block) {
      weights.push_back(weights.back() * block);
    }
    bool short_of = open && left_open->short_of && weights.size() > 1;
    SizeAxes::Extent& extent = axes.extents.emplace_back();
    for (auto weight = weights.rbegin(); weight != weights.rend(); ++weight) {
      bool lacks = short_of && weight != weights.rbegin();
      extent.digits.push_back({.axis = axes.count++, .weight = lacks ? -*weight : *weight});
    }
  }
  return axes;
}

// Of one extent, in its digits alone: first and last of each.
using Digits = std::vector<std::int64_t>;
struct DigitBox {
  Digits lo, hi;
};

// Those of `all` whose digits from `first` on are, as a number, less than those of `than`, or more.
void push_beside(const DigitBox& all, const Digits& than, std::size_t first, std::size_t last,
                 bool less, std::vector<DigitBox>& out) {
  for (std::size_t i = first; i <= last; ++i) {
    DigitBox& box = out.emplace_back(all);
    for (std::size_t j = first; j < i; ++j) box.lo[j] = box.hi[j] = than[j];
    (less ? box.hi[i] : box.lo[i]) = than[i] + (less ? -1 : 1);
    if (box.lo[i] > box.hi[i]) out.pop_back();
  }
}

// All sizes up to the bound; the last box ends with it.
std::vector<DigitBox> all_values(const SizeAxes::Extent& extent, std::int64_t bound) {
  const std::vector<SizeAxes::Digit>& digits = extent.digits;
  auto weight = [&](std::size_t i) { return std::abs(digits[i].weight); };
  bool short_of = extent.is_short_of();
  Digits none(digits.size(), 0), of_bound = none, most = none;
  of_bound[0] = most[0] = short_of ? ceil_div(bound, weight(0)) : bound / weight(0);
  std::int64_t rest = short_of ? weight(0) * most[0] - bound : bound % weight(0);
  for (std::size_t i = 1; i < digits.size(); ++i) {
    of_bound[i] = rest / weight(i);
    rest %= weight(i);
    most[i] = weight(i - 1) / weight(i) - 1;
  }
  std::vector<DigitBox> out;
  std::size_t last = digits.size() - 1;
  if (short_of) {
    out.push_back({.lo = none, .hi = none});
    if (bound == 0) return out;
    DigitBox all{.lo = none, .hi = most};
    all.lo[0] = 1;
    // From here on all digits may be anything.
    while (last > 1 && of_bound[last] == 0) --last;
    push_beside(all, of_bound, 1, last - 1, /*less=*/false, out);
    DigitBox with_bound = all;
    for (std::size_t i = 1; i <= last; ++i) with_bound.lo[i] = of_bound[i];
    for (std::size_t i = 1; i < last; ++i) with_bound.hi[i] = of_bound[i];
    --all.hi[0];
    if (all.hi[0] > 0) push_beside(all, of_bound, 1, last, /*less=*/true, out);
    out.push_back(with_bound);
    return out;
  }
  while (last > 0 && of_bound[last] == most[last]) --last;
  DigitBox all{.lo = none, .hi = most}, with_bound = all;
  if (last > 0) push_beside(all, of_bound, 0, last - 1, /*less=*/true, out);
  for (std::size_t i = 0; i < last; ++i) with_bound.lo[i] = of_bound[i];
  for (std::size_t i = 0; i <= last; ++i) with_bound.hi[i] = of_bound[i];
  out.push_back(with_bound);
  return out;
}

// All sizes up to the bounds; the last box ends with them.
std::vector<SizeBox> all_sizes(const SizeAxes& axes, const std::vector<std::int64_t>& bounds) {
  std::vector<SizeBox> boxes(1);
  for (std::size_t e = 0; e < bounds.size(); ++e) {
    const std::vector<SizeAxes::Digit>& digits = axes.extents[e].digits;
    std::vector<DigitBox> values = all_values(axes.extents[e], bounds[e]);
    std::vector<SizeBox> more;
    for (const SizeBox& box : boxes) {
      for (const DigitBox& of : values) {
        SizeBox& both = more.emplace_back(box);
        for (std::size_t j = 0; j < digits.size(); ++j) {
          both.lo[at(digits[j].axis)] = of.lo[j];
          both.hi[at(digits[j].axis)] = of.hi[j];
        }
      }
    }
    boxes = std::move(more);
  }
  return boxes;
}

SizePoint largest(const SizeAxes& axes, const SizeBox& box) {
  SizePoint point = box.hi;
  for (const SizeAxes::Extent& e : axes.extents) {
    for (const SizeAxes::Digit& d : e.digits) {
      if (d.weight < 0) point[at(d.axis)] = box.lo[at(d.axis)];
    }
  }
  return point;
}

// Not in the middle: bounds are mostly powers of two, and so are tiles, so something ends there.
SizePoint within(const SizeBox& box) {
  SizePoint point;
  for (std::size_t i = 0; i < point.size(); ++i) {
    point[i] = box.lo[i] + 2 * (box.hi[i] - box.lo[i]) / 5;
  }
  return point;
}

// Boxes of sizes that are still to be cut, the largest first, so that soon most of them are.
class SizesLeft {
 public:
  SizesLeft(std::vector<SizeBox> boxes, int count) : boxes_(std::move(boxes)), count_(count) {
    for (const SizeBox& box : boxes_) all_ += volume(box);
  }

  bool empty() const { return boxes_.empty(); }
  // At first the one with the bounds, the last.
  SizeBox pop() {
    auto smaller = [&](const SizeBox& a, const SizeBox& b) { return volume(a) < volume(b); };
    if (num_taken_ > 0) {
      std::swap(*std::max_element(boxes_.begin(), boxes_.end(), smaller), boxes_.back());
    }
    SizeBox box = boxes_.back();
    boxes_.pop_back();
    return box;
  }

  // What is left of a box beside one within it.
  void take(SizeBox box, const SizeBox& taken) {
    ++num_taken_;
    taken_ += volume(taken);
    for (std::size_t i = 0; i < at(count_); ++i) {
      if (box.lo[i] < taken.lo[i]) {
        boxes_.push_back(box);
        boxes_.back().hi[i] = taken.lo[i] - 1;
      }
      if (box.hi[i] > taken.hi[i]) {
        boxes_.push_back(box);
        boxes_.back().lo[i] = taken.hi[i] + 1;
      }
      box.lo[i] = taken.lo[i];
      box.hi[i] = taken.hi[i];
    }
  }

  // Whether the pieces will have more events than `most_times` the first: too many of those that
  // are taken, or of so large a part of all sizes.
  bool too_large(int most_times, std::size_t first, std::size_t events) const {
    if (most_times == 0 || num_taken_ < 2) return false;
    double times = static_cast<double>(events) / static_cast<double>(first);
    return times > most_times || times * all_ / taken_ > 2 * most_times;
  }

  // Whether there will be more pieces than `most`: each box is at least one, and as many as are
  // taken hold so large a part of all sizes. The first piece, at the bounds, is mostly a small one.
  bool hopeless(std::size_t most) const {
    if (num_taken_ + boxes_.size() > most) return true;
    double pieces = static_cast<double>(num_taken_) * all_ / taken_;
    double sure = num_taken_ < 2 ? 0 : num_taken_ < 8 ? 4 : 1.5;
    return sure > 0 && pieces > sure * static_cast<double>(most);
  }

 private:
  double volume(const SizeBox& box) const {
    double v = 1;
    for (std::size_t i = 0; i < at(count_); ++i) {
      v *= static_cast<double>(box.hi[i] - box.lo[i] + 1);
    }
    return v;
  }

  std::vector<SizeBox> boxes_;
  int count_;
  double all_ = 0, taken_ = 0;
  std::size_t num_taken_ = 0;
};

// Of the operation's places and conditions one that goes by a size.
const Expr* by_size(const Program& program, const Op& op) {
  std::set<int> sizes;
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    if (program.vars[v].kind == VarKind::kExtent) sizes.insert(static_cast<int>(v));
  }
  std::vector<const Expr*> all;
  for (const Expr& e : op.exprs) all.push_back(&e);
  for (const auto* region : {&op.region, &op.region2}) {
    if (!region->has_value()) continue;
    all.insert(all.end(), {&(*region)->row_end, &(*region)->col_end, &(*region)->rank});
    for (const Expr& e : (*region)->origin) all.push_back(&e);
  }
  auto found = std::ranges::find_if(
      all, [&](const Expr* e) { return e->has_value() && uses_any(*e, sizes); });
  return found == all.end() ? nullptr : *found;
}

NoPieces cut_by(const Program& program, const Op* op) {
  if (op == nullptr) return {};
  const Expr* expr = by_size(program, *op);
  return {.where = describe_loc(op), .expression = expr ? print_expr(program, *expr) : ""};
}

// What is left of a region while it is walked: what was left open before it got smaller may be
// known then, and agents that go by the same condition before and after that are not seen to. So
// it is walked anew, in what is left. Each rank may have a share that is empty at a few small sizes
// more, which are cut off one after the other.
InstanceGraph expand_around(const Program& program, const SizePartition& parts,
                            std::optional<LeftOpen> open, SizeRegion& region, LoopsShown& shown) {
  const int most_times = 4 + program.world_size;
  for (int time = 1;; ++time) {
    SizeRegion before = region;
    region = SizeRegion(parts.axes, before.box(), before.sample());
    if (open) region.leave_masks_open(open->waits);
    if (open && open->loops) region.leave_loops_open();
    auto again = [&] {
      return open && time < most_times && region.num_sizes() < before.num_sizes();
    };
    try {
      return expand(program, parts.axes, region, &shown);
    } catch (const DependsOnTable&) {
      if (!again()) throw;
    } catch (const Rejected&) {
      if (!again()) throw;
    }
  }
}

std::unique_ptr<SizePartition> partition(const Program& program, const MostPieces& allowed,
                                         std::optional<LeftOpen> open, NoPieces& why,
                                         const OnPiece& taken) {
  std::size_t most = allowed.at_most;
  auto table = std::ranges::find_if(
      program.tensors, [](const Tensor& t) { return t.contract.kind != ContractKind::kNone; });
  auto out =
      std::make_unique<SizePartition>(SizePartition{.axes = axes_of(program, open), .pieces = {}});
  if (table != program.tensors.end() && !open) {
    why = {.where = fmt::format("{}:{}", table->loc.file, table->loc.line),
           .expression = fmt::format("the contract of table '{}'", table->name)};
    return nullptr;
  }
  if (out->axes.count == 0 || out->axes.count > kMaxSizeAxes) return nullptr;
  std::pair<const Op*, double> deepest{nullptr, 1};
  LoopsShown shown;
  SizesLeft left(all_sizes(out->axes, extent_bounds(program)), out->axes.count);
  std::size_t first_events = 0, all_events = 0;
  while (!left.empty()) {
    if (left.too_large(allowed.most_times, first_events, all_events)) {
      why.too_large = true;
      return nullptr;
    }
    if (left.hopeless(most)) {
      why = cut_by(program, deepest.first);
      return nullptr;
    }
    SizeBox box = left.pop();
    SizePoint sample = out->pieces.empty() ? largest(out->axes, box) : within(box);
    SizeRegion region(out->axes, box, sample);
    why.extents = extents_at(out->axes, sample);
    InstanceGraph graph;
    try {
      graph = expand_around(program, *out, open, region, shown);
    } catch (const DependsOnTable& reason) {
      why = {.where = reason.where, .expression = reason.what};
      return nullptr;
    }
    if (graph.deepest_cut.second < deepest.second) deepest = graph.deepest_cut;
    std::size_t events = std::max<std::size_t>(1, graph.num_events());
    all_events += events;
    if (out->pieces.empty()) {
      first_events = events;
      most = std::clamp(2 * allowed.events / events, allowed.at_least, allowed.at_most);
    }
    out->pieces.push_back({.box = region.box(), .sample = sample});
    left.take(box, region.box());
    if (!taken(*out, std::move(graph))) return nullptr;
  }
  return out;
}

}  // namespace

bool counts_blocks(const Program& program) { return block_size(program) > 1; }
bool has_remainders(const Program& program) {
  SizeAxes axes = axes_of(program, LeftOpen{.short_of = true});
  return std::ranges::any_of(axes.extents, [](const auto& e) { return e.is_short_of(); });
}

std::unique_ptr<SizePartition> partition_sizes(const Program& program, std::size_t most,
                                               NoPieces& why) {
  return partition(program, {.at_least = most, .at_most = most, .events = 0}, {}, why,
                   [](const auto&, const InstanceGraph&) { return true; });
}

std::unique_ptr<SizePartition> partition_with_masks(const Program& program, const MostPieces& most,
                                                    LeftOpen open, NoPieces& why,
                                                    const OnPiece& taken) {
  return partition(program, most, open, why, taken);
}

}  // namespace stretto
