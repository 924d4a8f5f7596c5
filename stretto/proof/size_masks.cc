#include "stretto/proof/size_masks.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "stretto/proof/overlap.h"

namespace stretto {
namespace {

SizeForm minus(const SizeForm& a, const SizeForm& b) {
  SizeForm out{.value = a.value - b.value};
  for (std::size_t i = 0; i < out.slope.size(); ++i) out.slope[i] = a.slope[i] - b.slope[i];
  return out;
}

SizeForm plus(const SizeForm& a, const SizeForm& b) { return minus(a, minus({}, b)); }

// Of a hash and one value more.
std::size_t mixed(std::size_t hash, std::int64_t value) {
  hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

bool at_most_in(const SizeRegion& region, const SizeForm& a, const SizeForm& b) {
  if (a.slope == b.slope) return a.value <= b.value;
  return region.most(minus(a, b)) <= 0;
}

// Wherever `x` is positive, `y` is, too.
bool positive_in(const SizeRegion& region, const SizeForm& x, const SizeForm& y) {
  return at_most_in(region, x, y) || region.positive_with(x, y);
}

}  // namespace

// Of boxes in a row: where one begins, and each of the ends that it may have.
struct SizeMasks::Link {
  SizeForm lo;
  std::vector<SizeForm> ends;
};

// Boxes that move alike with the sizes.
struct SizeMasks::Group {
  std::vector<std::size_t> idx;  // into what was asked about
  std::vector<Box> boxes;        // at the sample, as far as they move together
  Mask first;
  std::array<SizeForm, kMaxTensorDims> from;  // the least beginning
  // Of all of them: where one ends, in numbers of sets of forms, and if it is there under
  // conditions, from where on and which.
  struct End {
    int hi, lo = -1;
    std::vector<int> there{};
    friend auto operator<=>(const End&, const End&) = default;
  };
  std::array<std::set<End>, kMaxTensorDims> ends;
};

std::size_t SizeMasks::FormHash::operator()(const SizeForm& form) const {
  std::size_t h = mixed(0, form.value);
  for (std::int64_t s : form.slope) h = mixed(h, s);
  return h;
}

std::size_t SizeMasks::MaskHash::operator()(const Mask& mask) const {
  std::size_t h = 0;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) h = mixed(mixed(h, mask.lo[d]), mask.hi[d]);
  for (int t : mask.there) h = mixed(h, t);
  return h;
}

int SizeMasks::form(const SizeForm& form) {
  auto [it, is_new] = form_ids_.try_emplace(form, static_cast<int>(forms_.size()));
  if (is_new) forms_.push_back(form);
  return it->second;
}

// Without those that another one is always at most; of those that move like the beginning one
// stays.
int SizeMasks::caps(std::vector<SizeForm> ends, const SizeForm& from, const SizeRegion& region) {
  std::vector<SizeForm> kept;
  for (const SizeForm& e : ends) {
    bool moves_along = e.slope == from.slope;
    bool known = false;
    for (SizeForm& k : kept) {
      if (k.slope == e.slope) {
        k.value = std::min(k.value, e.value);
        known = true;
      }
    }
    if (!known) kept.insert(moves_along ? kept.begin() : kept.end(), e);
  }
  for (std::size_t i = 1; i < kept.size();) {  // the first moves along
    bool idle = false;
    for (std::size_t j = 0; j < kept.size(); ++j) {
      idle |= j != i && at_most_in(region, kept[j], kept[i]);
    }
    if (idle) {
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  Caps ids;
  for (const SizeForm& k : kept) ids.push_back(form(k));
  std::sort(ids.begin(), ids.end());
  auto [it, is_new] = caps_ids_.try_emplace(ids, static_cast<int>(caps_.size()));
  if (is_new) caps_.push_back(ids);
  return it->second;
}

std::optional<Mask> SizeMasks::mask(const std::vector<Side>& sides,
                                    const std::vector<SizeForm>& there, const SizeRegion& region) {
  Mask out;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    SizeForm from;
    std::vector<SizeForm> ends = {{.value = 1}};
    if (d < sides.size()) {
      from = sides[d].from;
      ends = sides[d].ends;
    }
    if (from.value < 0) {
      from = {};
      ends.push_back({.value = std::int64_t{1} << 40});
    }
    for (const SizeForm& e : ends) {
      if (at_most_in(region, e, from)) return std::nullopt;
    }
    out.lo[d] = form(from);
    out.hi[d] = caps(std::move(ends), from, region);
  }
  for (const SizeForm& t : there) {
    if (region.most(t) < 1) return std::nullopt;
    bool anyway = std::any_of(sides.begin(), sides.end(), [&](const Side& side) {
      return side.from.value >= 0 &&
             std::any_of(side.ends.begin(), side.ends.end(), [&](const SizeForm& end) {
               return positive_in(region, minus(end, side.from), t);
             });
    });
    if (!anyway && region.least(t) < 1) out.there.push_back(form(t));
  }
  std::sort(out.there.begin(), out.there.end());
  out.there.erase(std::unique(out.there.begin(), out.there.end()), out.there.end());
  return out;
}

void SizeMasks::settle(const SizeRegion& region) {
  region_ = region;
  std::map<std::pair<int, int>, int> known;  // by beginning and ends
  for (Mask& m : masks_) {
    for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
      auto [it, is_new] = known.try_emplace({m.lo[d], m.hi[d]}, 0);
      if (is_new) {
        std::vector<SizeForm> ends;
        for (int f : hi(m, d)) ends.push_back(forms_[at(f)]);
        it->second = caps(std::move(ends), lo(m, d), region);
      }
      m.hi[d] = it->second;
    }
    std::erase_if(m.there, [&](int t) { return region.least(forms_[at(t)]) > 0; });
  }
  mask_ids_.clear();
}

int SizeMasks::number(const Mask& mask) {
  auto [it, is_new] = mask_ids_.try_emplace(mask, static_cast<int>(masks_.size()));
  if (is_new) masks_.push_back(mask);
  return it->second;
}

bool SizeMasks::constant(const Mask& m, std::size_t d) const {
  return lo(m, d).is_constant() && hi(m, d).size() == 1 && forms_[at(hi(m, d)[0])].is_constant();
}

std::int64_t SizeMasks::constant_end(const Mask& m, std::size_t d) const {
  return forms_[at(hi(m, d)[0])].value;
}

std::optional<std::pair<Box, Box>> SizeMasks::beside(const Mask& a, const Mask& b) const {
  std::pair<Box, Box> out;
  if (a.there != b.there) return std::nullopt;
  int differing = 0;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    out.first.hi[d] = out.second.hi[d] = 1;
    if (a.lo[d] == b.lo[d] && a.hi[d] == b.hi[d]) continue;
    if (++differing > 1 || !constant(a, d) || !constant(b, d)) return std::nullopt;
    out.first.lo[d] = lo(a, d).value;
    out.first.hi[d] = constant_end(a, d);
    out.second.lo[d] = lo(b, d).value;
    out.second.hi[d] = constant_end(b, d);
  }
  return out;
}

Mask SizeMasks::widened(const Mask& mask, const Mask& other, const Box& box) {
  Mask out = mask;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (mask.lo[d] == other.lo[d] && mask.hi[d] == other.hi[d]) continue;
    out.lo[d] = form({.value = box.lo[d]});
    out.hi[d] = caps({{.value = box.hi[d]}}, {.value = box.lo[d]}, region_);
  }
  return out;
}

Box SizeMasks::hull(int number) const {
  const Mask& m = masks_[at(number)];
  Box box;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    box.lo[d] = region_.least(lo(m, d));
    box.hi[d] = region_.most(forms_[at(hi(m, d)[0])]);
    for (int f : hi(m, d)) box.hi[d] = std::min(box.hi[d], region_.most(forms_[at(f)]));
  }
  return box;
}

std::int64_t SizeMasks::value_at(const SizeForm& form, const SizePoint& point) const {
  std::int64_t v = form.value;
  for (std::size_t i = 0; i < point.size(); ++i) {
    v += form.slope[i] * (point[i] - region_.sample()[i]);
  }
  return v;
}

Box SizeMasks::at_size(int number, const SizePoint& point) const {
  const Mask& m = masks_[at(number)];
  Box box;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    box.lo[d] = value_at(lo(m, d), point);
    box.hi[d] = value_at(forms_[at(hi(m, d)[0])], point);
    for (int f : hi(m, d)) box.hi[d] = std::min(box.hi[d], value_at(forms_[at(f)], point));
  }
  for (int t : m.there) {
    if (value_at(forms_[at(t)], point) < 1) return {};
  }
  return box;
}

bool SizeMasks::at_most(const SizeForm& a, const SizeForm& b) const {
  return at_most_in(region_, a, b);
}

// The end is at most the form.
bool SizeMasks::ends_by(const Caps& ends, const SizeForm& form) const {
  return std::any_of(ends.begin(), ends.end(), [&](int f) { return at_most(forms_[at(f)], form); });
}

// Whatever is left of `inner`. Rows that are there where a form is positive end where that is so.
bool SizeMasks::within(const Mask& inner, const Mask& outer, std::size_t d) const {
  if (inner.lo[d] == outer.lo[d] && inner.hi[d] == outer.hi[d]) return true;
  const Caps& ends = hi(outer, d);
  return at_most(lo(outer, d), lo(inner, d)) && std::ranges::all_of(ends, [&](int f) {
           return ends_by(hi(inner, d), forms_[at(f)]) ||
                  std::ranges::any_of(hi(inner, d), [&](int end) {
                    SizeForm room = minus(forms_[at(f)], forms_[at(end)]);
                    return positive_with(inner, plus(room, {.value = 1}));
                  });
         });
}

// Where anything is left of `inner`, the form is positive.
bool SizeMasks::there_with(const Mask& inner, int there) const {
  return std::binary_search(inner.there.begin(), inner.there.end(), there) ||
         positive_with(inner, forms_[at(there)]);
}

bool SizeMasks::positive_with(const Mask& inner, const SizeForm& form) const {
  if (region_.least(form) > 0) return true;
  bool so = std::ranges::any_of(
      inner.there, [&](int t) { return positive_in(region_, forms_[at(t)], form); });
  for (std::size_t d = 0; d < kMaxTensorDims && !so; ++d) {
    so = std::ranges::any_of(hi(inner, d), [&](int end) {
      return positive_in(region_, minus(forms_[at(end)], lo(inner, d)), form);
    });
  }
  return so;
}

std::vector<int> SizeMasks::facts_with(int number, const std::set<int>& wanted) const {
  std::vector<int> out;
  for (const auto& [fact, where] : facts_) {
    if (wanted.count(fact) == 0) continue;
    bool so = std::all_of(where.begin(), where.end(), [&](const SizeForm& form) {
      return positive_with(masks_[at(number)], form);
    });
    if (so) out.push_back(fact);
  }
  return out;
}

bool SizeMasks::apart(const Mask& x, const Mask& y) const {
  for (int t : x.there) {
    for (int u : y.there) {  // not both are positive
      if (at_most(forms_[at(t)], minus({.value = 1}, forms_[at(u)]))) return true;
    }
  }
  auto before = [&](const Mask& a, const Mask& b, std::size_t d) {
    return ends_by(hi(a, d), lo(b, d)) || some_end_by(a.hi[d], a.lo[d], a.there, lo(b, d));
  };
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (before(x, y, d) || before(y, x, d)) return true;
  }
  return false;
}

// A box of one element that is there where some form is positive lies before as many elements as
// that, from itself on: tokens of a rank's share before the next share. So does a box of g elements
// where the form is a multiple of g: whole blocks of a share.
bool SizeMasks::some_end_by(int hi, int lo, const std::vector<int>& there,
                            const SizeForm& form) const {
  const SizeForm& from = forms_[at(lo)];
  auto no_more_than = [&](std::int64_t elements) {
    return std::ranges::any_of(caps_[at(hi)], [&](int end) {
      return forms_[at(end)].slope == from.slope && forms_[at(end)].value <= from.value + elements;
    });
  };
  return std::ranges::any_of(there, [&](int t) {
    const SizeForm& positive = forms_[at(t)];
    std::int64_t factor = positive.value;
    for (std::int64_t s : positive.slope) factor = std::gcd(factor, s);
    return at_most(plus(from, positive), form) && no_more_than(factor);
  });
}

bool SizeMasks::apart(const Group& x, const Group& y) const {
  // Each by an end of its own: tiles of a part end where they do, the last ones where the part
  // does.
  auto before = [&](const Group& a, const Group& b, std::size_t d) {
    return std::ranges::all_of(a.ends[d], [&](const Group::End& end) {
      return ends_by(caps_[at(end.hi)], b.from[d]) ||
             some_end_by(end.hi, end.lo, end.there, b.from[d]);
    });
  };
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (before(x, y, d) || before(y, x, d)) return true;
  }
  return false;
}

// Of the group those that do not end, in any dimension, before all of the other begin.
std::vector<std::size_t> SizeMasks::not_before(const Group& group, const std::vector<int>& numbers,
                                               const Group& other) const {
  std::vector<std::size_t> out;
  for (std::size_t i : group.idx) {
    const Mask& m = masks_[at(numbers[i])];
    bool before = false;
    for (std::size_t d = 0; d < kMaxTensorDims && !before; ++d) {
      before = ends_by(hi(m, d), other.from[d]) ||
               some_end_by(m.hi[d], m.lo[d], m.there, other.from[d]);
    }
    if (!before) out.push_back(i);
  }
  return out;
}

std::vector<SizeMasks::Group> SizeMasks::groups(const std::vector<int>& numbers) const {
  std::map<std::array<SizePoint, kMaxTensorDims>, std::size_t> known;
  std::vector<Group> out;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Mask& m = masks_[at(numbers[i])];
    std::array<SizePoint, kMaxTensorDims> slopes;
    for (std::size_t d = 0; d < kMaxTensorDims; ++d) slopes[d] = lo(m, d).slope;
    auto [it, is_new] = known.try_emplace(slopes, out.size());
    if (is_new) out.emplace_back();
    Group& g = out[it->second];
    Box box;
    for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
      SizeForm from = lo(m, d), to = from;
      for (int f : hi(m, d)) {
        if (forms_[at(f)].slope == from.slope) to = forms_[at(f)];
      }
      box.lo[d] = from.value;
      box.hi[d] = to.value;
      g.ends[d].insert(m.there.empty() ? Group::End{m.hi[d]}
                                       : Group::End{m.hi[d], m.lo[d], m.there});
      if (is_new || from.value < g.from[d].value) g.from[d] = from;
    }
    g.idx.push_back(i);
    g.boxes.push_back(box);
  }
  return out;
}

void SizeMasks::for_each_meeting(const std::vector<int>& a, const std::vector<int>& b,
                                 const std::function<void(std::size_t, std::size_t)>& fn) const {
  auto meet = [&](std::size_t i, std::size_t j) {
    if (!apart(masks_[at(a[i])], masks_[at(b[j])])) fn(i, j);
  };
  std::vector<Group> of_a = groups(a), of_b = groups(b);
  for (const Group& x : of_a) {
    for (const Group& y : of_b) {
      bool alike = true;
      for (std::size_t d = 0; d < kMaxTensorDims; ++d) alike &= x.from[d].slope == y.from[d].slope;
      if (alike) {
        for_each_overlap(x.boxes, y.boxes,
                         [&](std::size_t i, std::size_t j) { meet(x.idx[i], y.idx[j]); });
        continue;
      }
      if (apart(x, y)) continue;
      // One large box may keep the groups from being apart.
      std::vector<std::size_t> some_x = not_before(x, a, y), some_y = not_before(y, b, x);
      std::vector<Box> hulls_x, hulls_y;
      for (std::size_t i : some_x) hulls_x.push_back(hull(a[i]));
      for (std::size_t j : some_y) hulls_y.push_back(hull(b[j]));
      for_each_overlap(hulls_x, hulls_y,
                       [&](std::size_t i, std::size_t j) { meet(some_x[i], some_y[j]); });
    }
  }
}

bool SizeMasks::meet_always(int a, int b) const {
  const Mask &x = masks_[at(a)], &y = masks_[at(b)];
  if (!x.there.empty() || !y.there.empty()) return false;
  auto begins_before = [&](const Mask& m, const Mask& other, std::size_t d) {
    return std::all_of(hi(other, d).begin(), hi(other, d).end(), [&](int end) {
      return at_most(plus(lo(m, d), {.value = 1}), forms_[at(end)]);
    });
  };
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    for (const Mask* m : {&x, &y}) {
      if (!begins_before(*m, x, d) || !begins_before(*m, y, d)) return false;
    }
  }
  return true;
}

bool SizeMasks::is_nothing(int number) const {
  const Mask& m = masks_[at(number)];
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (ends_by(hi(m, d), lo(m, d))) return true;
  }
  return std::any_of(m.there.begin(), m.there.end(),
                     [&](int t) { return region_.most(forms_[at(t)]) < 1; });
}

bool SizeMasks::covers(int box, const std::vector<int>& by) const {
  const Mask& whole = masks_[at(box)];
  MaskRefs all;
  for (int w : by) all.push_back(&masks_[at(w)]);
  std::deque<Mask> either = one_or_other(all);
  for (const Mask& m : either) all.push_back(&m);
  for (const Mask* m : all) {
    bool holds = true;
    for (std::size_t d = 0; d < kMaxTensorDims && holds; ++d) holds = within(whole, *m, d);
    for (int t : m->there) holds = holds && there_with(whole, t);
    if (holds) return true;
  }
  if (is_nothing(box)) return true;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (covers_along(d, whole, all)) return true;
  }
  return false;
}

// What two boxes have in common, one of which is there where a form is positive, the other where it
// is not, so one of the two always: their intersections, where these can be told.
std::deque<Mask> SizeMasks::one_or_other(const MaskRefs& masks) const {
  constexpr std::size_t kMostPairs = 256;
  auto not_so = [&](int t) {
    SizeForm less = minus({.value = 1}, forms_[at(t)]);
    auto known = form_ids_.find(less);
    return known == form_ids_.end() ? -1 : known->second;
  };
  std::map<std::pair<std::vector<int>, int>, MaskRefs> under;  // by other forms, and by the form
  std::deque<Mask> out;
  std::set<Mask> known;
  std::function<void(const Mask&)> add = [&](const Mask& m) {
    for (std::size_t i = 0; i < m.there.size(); ++i) {
      std::vector<int> others = m.there;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      under[{others, m.there[i]}].push_back(&m);
      auto otherwise = under.find({others, not_so(m.there[i])});
      if (otherwise == under.end() || otherwise->second.size() > kMostPairs) continue;
      for (const Mask* other : MaskRefs(otherwise->second)) {
        std::optional<Mask> both = common(m, *other);
        if (!both) continue;
        both->there = others;
        if (known.insert(*both).second) add(out.emplace_back(std::move(*both)));
      }
    }
  };
  std::set<const Mask*> seen;
  for (const Mask* m : masks) {
    if (!m->there.empty() && seen.insert(m).second) add(*m);
  }
  return out;
}

// Of both boxes, where each side is the same of both, or numbers.
std::optional<Mask> SizeMasks::common(const Mask& a, const Mask& b) const {
  Mask out = a;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (a.lo[d] == b.lo[d] && a.hi[d] == b.hi[d]) continue;
    if (!constant(a, d) || !constant(b, d)) return std::nullopt;
    if (lo(b, d).value > lo(a, d).value) out.lo[d] = b.lo[d];
    if (constant_end(b, d) < constant_end(a, d)) out.hi[d] = b.hi[d];
    if (lo(out, d).value >= constant_end(out, d)) return std::nullopt;
  }
  return out;
}

// Boxes that are alike in a dimension, and together span the others, lie along it. Take an element
// of `box` that none of them holds. One of them begins at or before it, so ends at or before it, by
// one of its ends; where each end is reached by a later one's beginning, that one begins at or
// before the element, too. So on to one whose ends all lie at or behind the end of `box`: no. All
// this need be so only at sizes at which anything is left of `box`. Of one that is there where a
// form is positive no more is counted on than so many elements.
bool SizeMasks::covers_along(std::size_t d, const Mask& box, const MaskRefs& by) const {
  std::map<std::tuple<int, int, std::vector<int>>, MaskRefs> alike;
  for (const Mask* w : by) {
    const Mask& m = *w;
    std::vector<int> there;
    for (int t : m.there) {
      if (!there_with(box, t)) there.push_back(t);
    }
    alike[{m.lo[d], m.hi[d], std::move(there)}].push_back(w);
  }
  std::vector<Link> row;
  for (const auto& [like, masks] : alike) {
    if (!covers_across(d, box, masks)) continue;
    const Mask& m = *masks[0];
    Link& link = row.emplace_back(Link{lo(m, d), {}});
    for (int end : hi(m, d)) link.ends.push_back(forms_[at(end)]);
    for (int t : std::get<2>(like)) link.ends.push_back(plus(link.lo, forms_[at(t)]));
  }
  const SizePoint& largest = region_.box().hi;
  std::sort(row.begin(), row.end(), [&](const Link& x, const Link& y) {
    return value_at(x.lo, largest) < value_at(y.lo, largest);
  });
  return row_reaches_end(d, box, row,
                         [&](const SizeForm& a, const SizeForm& b) { return at_most(a, b); }) ||
         row_reaches_end(d, box, row, [&](const SizeForm& a, const SizeForm& b) {
           return at_most(a, b) || positive_with(box, plus(minus(b, a), {.value = 1}));
         });
}

// `row` is in the order of its beginnings at the largest sizes. Of each link, from the last on: do
// it and later ones hold whatever of `box` lies at or behind its beginning?
template <typename AtMost>
bool SizeMasks::row_reaches_end(std::size_t d, const Mask& box, const std::vector<Link>& row,
                                const AtMost& at_most) const {
  constexpr std::size_t kMostTried = 8;
  std::vector<bool> holds(row.size(), false);
  // By end: the last that begins by there, one more; 0: none.
  std::map<std::pair<std::int64_t, SizePoint>, std::size_t> last;
  auto goes_on = [&](std::size_t i, const SizeForm& end) {
    if (i + 1 < row.size() && holds[i + 1] && at_most(row[i + 1].lo, end)) return true;
    auto [it, is_new] = last.try_emplace({end.value, end.slope}, row.size());
    while (is_new && it->second > 0 && !at_most(row[it->second - 1].lo, end)) --it->second;
    std::size_t next = it->second;
    for (std::size_t tried = 0; next > i + 1 && tried < kMostTried; --next, ++tried) {
      if (holds[next - 1] && at_most(row[next - 1].lo, end)) return true;
    }
    return false;
  };
  const Caps& of_box = hi(box, d);
  for (std::size_t i = row.size(); i > 0; --i) {
    holds[i - 1] = std::ranges::all_of(row[i - 1].ends, [&](const SizeForm& end) {
      return std::ranges::any_of(of_box, [&](int g) { return at_most(forms_[at(g)], end); }) ||
             goes_on(i - 1, end);
    });
  }
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (holds[i] && at_most(row[i].lo, lo(box, d))) return true;
  }
  return false;
}

bool SizeMasks::covers_across(std::size_t d, const Mask& box, const MaskRefs& by) const {
  for (const Mask* w : by) {
    bool all = true;
    for (std::size_t e = 0; e < kMaxTensorDims && all; ++e) {
      all = e == d || within(box, *w, e);
    }
    if (all) return true;
  }
  Box whole;
  std::vector<Box> pieces;
  auto flat = [&](const Mask& m, Box& out) {
    for (std::size_t e = 0; e < kMaxTensorDims; ++e) {
      out.lo[e] = e == d ? 0 : lo(m, e).value;
      if (e != d && !constant(m, e)) return false;
      out.hi[e] = e == d ? 1 : constant_end(m, e);
    }
    return true;
  };
  if (by.size() == 1 || !flat(box, whole)) return false;
  for (const Mask* w : by) {
    if (flat(*w, pieces.emplace_back())) continue;
    pieces.pop_back();
  }
  return uncovered(whole, pieces).empty();
}

}  // namespace stretto
