#include "stretto/proof/size_partition.h"

#include <algorithm>
#include <numeric>

#include "stretto/ir/program.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/size_boundaries.h"

namespace stretto {
namespace {

// Divisors beyond this cut sizes into pieces instead.
constexpr std::int64_t kSmallDivisor = 16, kMostModulus = 64;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

std::int64_t small_modulus(const Program& program) {
  std::int64_t modulus = 1;
  for (std::int64_t d : size_divisors(program)) {
    if (d <= kSmallDivisor && std::lcm(modulus, d) <= kMostModulus) modulus = std::lcm(modulus, d);
  }
  return modulus;
}

SizeAxes axes_of(const Program& program) {
  SizeAxes axes;
  std::int64_t modulus = small_modulus(program);
  for (std::int64_t bound : extent_bounds(program)) {
    SizeAxes::Extent e{.quotient = axes.count++};
    if (modulus > 1 && bound >= 4 * modulus) {
      e.modulus = modulus;
      e.remainder = axes.count++;
    }
    axes.extents.push_back(e);
  }
  return axes;
}

// All sizes up to the bounds; the last box ends with them.
std::vector<SizeBox> all_sizes(const SizeAxes& axes, const std::vector<std::int64_t>& bounds) {
  std::vector<SizeBox> boxes(1);
  for (std::size_t e = 0; e < bounds.size(); ++e) {
    const SizeAxes::Extent& extent = axes.extents[e];
    std::int64_t whole = bounds[e] / extent.modulus, rest = bounds[e] % extent.modulus;
    std::vector<SizeBox> more;
    for (SizeBox box : boxes) {
      box.hi[at(extent.quotient)] = whole;
      if (extent.remainder >= 0) {
        if (rest + 1 < extent.modulus) {
          SizeBox below = box;
          below.hi[at(extent.quotient)] = whole - 1;
          below.hi[at(extent.remainder)] = extent.modulus - 1;
          more.push_back(below);
          box.lo[at(extent.quotient)] = whole;
        }
        box.hi[at(extent.remainder)] = rest;
      }
      more.push_back(box);
    }
    boxes = std::move(more);
  }
  return boxes;
}

SizePoint middle(const SizeBox& box) {
  SizePoint point;
  for (std::size_t i = 0; i < point.size(); ++i) point[i] = box.lo[i] + (box.hi[i] - box.lo[i]) / 2;
  return point;
}

// What is left of a box beside one within it.
void leave(SizeBox box, const SizeBox& taken, int count, std::vector<SizeBox>& to) {
  for (std::size_t i = 0; i < at(count); ++i) {
    if (box.lo[i] < taken.lo[i]) {
      to.push_back(box);
      to.back().hi[i] = taken.lo[i] - 1;
    }
    if (box.hi[i] > taken.hi[i]) {
      to.push_back(box);
      to.back().lo[i] = taken.hi[i] + 1;
    }
    box.lo[i] = taken.lo[i];
    box.hi[i] = taken.hi[i];
  }
}

std::unique_ptr<SizePartition> partition(const Program& program, std::size_t most, bool masks_open,
                                         const OnPiece& taken) {
  bool tables = std::any_of(program.tensors.begin(), program.tensors.end(),
                            [](const Tensor& t) { return t.contract.kind != ContractKind::kNone; });
  auto out = std::make_unique<SizePartition>(SizePartition{.axes = axes_of(program), .pieces = {}});
  if (tables || out->axes.count == 0 || out->axes.count > kMaxSizeAxes) return nullptr;
  std::vector<SizeBox> left = all_sizes(out->axes, extent_bounds(program));
  while (!left.empty()) {
    if (out->pieces.size() >= most) return nullptr;
    SizeBox box = left.back();
    left.pop_back();
    SizePoint sample = out->pieces.empty() ? box.hi : middle(box);
    SizeRegion region(out->axes, box, sample);
    if (masks_open) region.leave_masks_open();
    InstanceGraph graph;
    try {
      graph = expand(program, out->axes, region);
    } catch (const DependsOnTable&) {
      return nullptr;
    }
    out->pieces.push_back({.box = region.box(), .sample = sample});
    leave(box, region.box(), out->axes.count, left);
    if (!taken(*out, std::move(graph))) return nullptr;
  }
  return out;
}

}  // namespace

std::unique_ptr<SizePartition> partition_sizes(const Program& program, std::size_t most) {
  return partition(program, most, false, [](const auto&, const InstanceGraph&) { return true; });
}

std::unique_ptr<SizePartition> partition_with_masks(const Program& program, std::size_t most,
                                                    const OnPiece& taken) {
  return partition(program, most, true, taken);
}

}  // namespace stretto
