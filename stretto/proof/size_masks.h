// Boxes that sizes cut off, for all sizes of a region at once (size_region.h). A box begins at an
// affine form of the sizes and ends at the least of several: where its tile ends, where the tensor
// does, where a mask says. So a region need not end where a mask reaches the next tile, and few
// regions make up all sizes. What is asked of two boxes or more is answered for every size of the
// region; "no" may mean that it was not seen. Filled by trace_recorder.h, asked by check.cc.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stretto/proof/instance_graph.h"
#include "stretto/proof/size_region.h"

namespace stretto {

// Numbers of forms, and of sets of forms the least of which is the end. Equal boxes at every size
// have equal numbers; the reverse need not be so. `there`: numbers of forms, ascending, all of
// which are positive where there is anything at all.
struct Mask {
  std::array<int, kMaxTensorDims> lo{}, hi{};
  std::vector<int> there;
  friend auto operator<=>(const Mask&, const Mask&) = default;
};

class SizeMasks {
 public:
  explicit SizeMasks(const SizeRegion& region) : region_(region) {}

  // `from` may be below zero, if it is so at all sizes of `region`. One of `ends` moves like
  // `from`. Absent where nothing is left of the box at any size of the region.
  struct Side {
    SizeForm from;
    std::vector<SizeForm> ends;
  };
  // Nothing is left of it where some of `there` is not positive.
  std::optional<Mask> mask(const std::vector<Side>& sides, const std::vector<SizeForm>& there,
                           const SizeRegion& region);
  // Of both, where they differ in one dimension and that is the same at all sizes: the two there,
  // with [0, 1) in every other dimension.
  std::optional<std::pair<Box, Box>> beside(const Mask& a, const Mask& b) const;
  // `mask` where [0, 1) is as in beside() and the other dimension as in `box`.
  Mask widened(const Mask& mask, const Mask& other, const Box& box);
  // Numbers count from 0 on.
  int number(const Mask& mask);

  // The region will not change any more. What it has got too small for is left out of masks that
  // were made before: those of tiles side by side are alike then.
  void settle(const SizeRegion& region);
  std::size_t size() const { return masks_.size(); }
  // Nothing is left of the box at any size.
  bool is_nothing(int number) const;
  // What holds a box at all sizes, and what it is at one of them.
  Box hull(int number) const;
  Box at_size(int number, const SizePoint& point) const;

  // A fact (table_choices.h) that is so where all of these are positive, and nowhere else.
  void add_fact(int fact, const std::vector<SizeForm>& where) {
    facts_.emplace_back(fact, where);
    fact_numbers_.insert(fact);
  }
  bool has_fact(int fact) const { return fact_numbers_.count(fact) != 0; }
  // Those of `wanted` that are so at all sizes at which anything is left of the box.
  std::vector<int> facts_with(int number, const std::set<int>& wanted) const;

  // Calls fn(i, j) for every a[i] and b[j], numbers, that may overlap at some size.
  void for_each_meeting(const std::vector<int>& a, const std::vector<int>& b,
                        const std::function<void(std::size_t, std::size_t)>& fn) const;
  // Whether the two overlap at all sizes.
  bool meet_always(int a, int b) const;
  // At all sizes.
  bool covers(int box, const std::vector<int>& by) const;

 private:
  using Caps = std::vector<int>;  // ascending
  struct FormHash {
    std::size_t operator()(const SizeForm& form) const;
  };
  struct MaskHash {
    std::size_t operator()(const Mask& mask) const;
  };
  struct Group;
  struct Link;

  int form(const SizeForm& form);
  int caps(std::vector<SizeForm> ends, const SizeForm& from, const SizeRegion& region);
  const SizeForm& lo(const Mask& m, std::size_t d) const { return forms_[at(m.lo[d])]; }
  const Caps& hi(const Mask& m, std::size_t d) const { return caps_[at(m.hi[d])]; }
  bool constant(const Mask& m, std::size_t d) const;
  std::int64_t constant_end(const Mask& m, std::size_t d) const;
  bool at_most(const SizeForm& a, const SizeForm& b) const;
  bool ends_by(const Caps& ends, const SizeForm& form) const;
  bool within(const Mask& inner, const Mask& outer, std::size_t d) const;
  bool there_with(const Mask& inner, int there) const;
  bool positive_with(const Mask& inner, const SizeForm& form) const;
  bool apart(const Mask& x, const Mask& y) const;
  bool apart(const Group& x, const Group& y) const;
  bool some_end_by(int hi, int lo, const std::vector<int>& there, const SizeForm& form) const;
  std::vector<std::size_t> not_before(const Group& group, const std::vector<int>& numbers,
                                      const Group& other) const;
  std::vector<Group> groups(const std::vector<int>& numbers) const;
  using MaskRefs = std::vector<const Mask*>;
  std::deque<Mask> one_or_other(const MaskRefs& masks) const;
  std::optional<Mask> common(const Mask& a, const Mask& b) const;
  bool covers_along(std::size_t d, const Mask& box, const MaskRefs& by) const;
  template <typename AtMost>
  bool row_reaches_end(std::size_t d, const Mask& box, const std::vector<Link>& row,
                       const AtMost& at_most) const;
  bool covers_across(std::size_t d, const Mask& box, const MaskRefs& by) const;
  std::int64_t value_at(const SizeForm& form, const SizePoint& point) const;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  SizeRegion region_;
  std::vector<SizeForm> forms_;
  std::unordered_map<SizeForm, int, FormHash> form_ids_;
  std::vector<Caps> caps_;
  std::map<Caps, int> caps_ids_;
  std::vector<Mask> masks_;
  std::unordered_map<Mask, int, MaskHash> mask_ids_;
  std::vector<std::pair<int, std::vector<SizeForm>>> facts_;
  std::set<int> fact_numbers_;
};

}  // namespace stretto
