#include "stretto/proof/trace_recorder.h"

#include <algorithm>
#include <cstdlib>

#include "stretto/base/errors.h"
#include "stretto/proof/reach.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
namespace {

bool begins_at(const LooseBox& tile, const Box& box) { return tile.origin == box.lo; }

// Of the operation's tile, in elements.
std::int64_t tile_size(const Region& region, std::size_t dim) {
  if (static_cast<int>(dim) == region.row_dim) return region.rows;
  return static_cast<int>(dim) == region.col_dim ? region.cols : 1;
}

// Whether an affine loop's tiles lie side by side.
bool side_by_side(const LooseBox& first, const LooseBox& second, const Region& region) {
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    std::int64_t step = second.origin[d] - first.origin[d];
    if (step != 0 && std::abs(step) != tile_size(region, d)) return false;
  }
  return true;
}

}  // namespace

// The same as for an affine loop of two boxes that one is to stand for.
bool TraceRecorder::joins(const Access& access, const Box& a, const Box& b) {
  const Region& region = *access.op->region;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    if (a.lo[d] == b.lo[d] && a.hi[d] == b.hi[d]) continue;
    const Box &low = a.lo[d] < b.lo[d] ? a : b, &high = a.lo[d] < b.lo[d] ? b : a;
    bool whole = (low.hi[d] - low.lo[d]) % tile_size(region, d) == 0;
    if (region_ != nullptr) {
      for (std::int64_t end : {low.lo[d], low.hi[d]}) {
        const SizeForm* form =
            region_->end_at(access.tensor, access.rank, static_cast<int>(d), end);
        if (form != nullptr) region_->pin(*form);
      }
    }
    if (low.hi[d] != high.lo[d] || !whole) return false;
  }
  return true;
}

void TraceRecorder::note_ends(const LooseAccess& access,
                              const std::array<std::int64_t, kMaxTensorDims>& from,
                              const std::array<std::int64_t, kMaxTensorDims>& size) {
  const Access& a = access.access;
  std::size_t dims = graph_.shapes[static_cast<std::size_t>(a.tensor)].size();
  for (std::size_t d = 0; d < dims; ++d) {
    SizeForm end = access.forms->origin[d];
    end.value = from[d];
    region_->note_end(a.tensor, a.rank, static_cast<int>(d), end);
    end.value += size[d];
    region_->note_end(a.tensor, a.rank, static_cast<int>(d), end);
  }
}

void TraceRecorder::keep_steps(const LooseAccess& first, const LooseAccess& second) {
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    SizeForm step = first.forms->origin[d];
    for (std::size_t i = 0; i < step.slope.size(); ++i) {
      step.slope[i] -= second.forms->origin[d].slope[i];
    }
    region_->pin(step);
  }
}

std::size_t TraceRecorder::BoxHash::operator()(const Box& b) const {
  std::size_t h = 0;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.lo[d]);
    h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.hi[d]);
  }
  return h ^ (h >> 29);
}

void TraceRecorder::start_agent(const AgentTrace& agent) { graph_.agents.push_back(agent); }

void TraceRecorder::add_sync(const Sync& sync) {
  budget_.step(sync.op->loc, kKept);
  graph_.agents.back().syncs.push_back(sync);
  if (sync.kind == SyncKind::kNotify) {
    graph_.quota[static_cast<std::size_t>(sync.counter)] += sync.amount;
  }
}

void TraceRecorder::add(const LooseAccess& access) {
  if (diverted_ != nullptr) {
    diverted_->push_back(access);
  } else {
    if (access.reaches) note_reach(access);
    if (is_left_out(access.access)) return;
    if (masks_ != nullptr) {
      return place_open(access.access, access.which, access.box, *access.forms);
    }
    if (access.forms != nullptr) note_ends(access, access.box.origin, access.box.size);
    Access a = access.access;
    Box box = clip(access.box);
    a.tiled &= begins_at(access.box, box);
    place(a, access.which, box);
  }
}

void TraceRecorder::note_reach(const LooseAccess& access) {
  const Access& a = access.access;
  const std::optional<Region>& region = access.which == 0 ? a.op->region : a.op->region2;
  if (!region) return;  // an entry of a table
  Reach& reach = graph_.reaches[{a.op, access.which, graph_.agents.back().rank}];
  if (reach.meets) return;
  Lie lie = lie_of(*graph_.program, *region, access.box,
                   graph_.shapes[static_cast<std::size_t>(a.tensor)]);
  if (lie == Lie::kNowhere) return;
  // At other sizes than the sample.
  auto left_out = [](const SizeForm& there) { return there.value < 1; };
  bool there = access.forms == nullptr || std::ranges::none_of(access.forms->there, left_out);
  if (!there) lie = Lie::kBeside;
  reach.meets = lie == Lie::kMeets;
  bool is_first = reach.tensor < 0;
  bool far = lie >= Lie::kFar;
  reach.astray |= lie == Lie::kAstray;
  if (!is_first && (!far || reach.far)) return;
  reach.far = far;
  reach.tensor = a.tensor;
  reach.rank = a.rank;
  reach.agent = static_cast<int>(graph_.agents.size()) - 1;
  reach.kind = a.kind;
  reach.tile = a.tile;
  for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
    reach.box.lo[d] = access.box.origin[d];
    reach.box.hi[d] = access.box.origin[d] + access.box.size[d];
  }
}

void TraceRecorder::begin_fold(bool ordered) {
  if (fold_depth_++ == 0) ordered_ = ordered;
}

void TraceRecorder::end_fold() {
  if (--fold_depth_ > 0) return;
  for (const Pending& p : pending_) {
    masks_ != nullptr ? append(p.access, masks_->number(p.mask)) : append(p.access, p.box);
  }
  pending_.clear();
}

void TraceRecorder::add_affine(const std::vector<LooseAccess>& first,
                               const std::vector<LooseAccess>& second, std::int64_t trips) {
  STRETTO_CHECK(first.size() == second.size(), "an affine loop repeats its accesses");
  for (std::size_t i = 0; i < first.size(); ++i) {
    Access a = first[i].access;
    bool tiled = a.tiled;
    bool is_write = a.kind == AccessKind::kWrite && !a.may;
    bool traced = first[i].forms != nullptr;
    if (traced) keep_steps(first[i], second[i]);
    if (auto folded = fold_affine(first[i].box, second[i].box, trips, is_write)) {
      note_reach({a, first[i].which, *folded, first[i].forms});
      if (is_left_out(a)) continue;
      if (masks_ != nullptr) {
        a.tiled = tiled && side_by_side(first[i].box, second[i].box, *a.op->region);
        place_open(a, first[i].which, *folded, *first[i].forms);
        continue;
      }
      if (traced) {
        note_ends(first[i], folded->origin, folded->size);
        note_ends(first[i], first[i].box.origin, first[i].box.size);
      }
      Box box = clip(*folded);
      a.tiled = tiled && begins_at(*folded, box) &&
                side_by_side(first[i].box, second[i].box, *a.op->region);
      place(a, first[i].which, box);
      continue;
    }
    LooseBox box = first[i].box;
    for (std::int64_t k = 0; k < trips; ++k) {
      TimeLimit::look();
      budget_.step(a.op->loc);
      note_reach({a, first[i].which, box, first[i].forms});
      if (is_left_out(a)) {
        // it is enough that it meets its tensor
      } else if (masks_ != nullptr) {
        place_open(a, first[i].which, box, *first[i].forms);
      } else {
        if (traced) note_ends(first[i], box.origin, box.size);
        Box clipped = clip(box);
        a.tiled = tiled && begins_at(box, clipped);
        place(a, first[i].which, clipped);
      }
      for (std::size_t d = 0; d < kMaxTensorDims; ++d) {
        box.origin[d] += second[i].box.origin[d] - first[i].box.origin[d];
      }
    }
  }
}

// Into the loop being folded, or into the trace.
void TraceRecorder::place(const Access& a, int which, const Box& box) {
  if (is_empty(box)) return;
  if (fold_depth_ == 0 || ordered_) return append(a, box);
  for (Pending& p : pending_) {
    if (p.access.op != a.op || p.which != which || !in_one_case(p.access, a)) continue;
    bool same = p.access.tensor == a.tensor && p.access.rank == a.rank && p.access.may == a.may;
    bool tiled = p.access.tiled && a.tiled && joins(a, p.box, box);
    if (same && extend_box(p.box, box, a.kind == AccessKind::kWrite && !a.may)) {
      p.access.tiled = tiled;
      p.access.choice = graph_.choices->common(p.access.choice, a.choice);
      return;
    }
    append(p.access, p.box);
    p.access = a;
    p.box = box;
    return;
  }
  pending_.push_back({a, which, box, {}});
}

void TraceRecorder::place_open(Access a, int which, const LooseBox& box, const LooseForms& forms) {
  std::vector<SizeMasks::Side> sides(graph_.shapes[static_cast<std::size_t>(a.tensor)].size());
  for (std::size_t d = 0; d < sides.size(); ++d) {
    SizeForm from = forms.origin[d], end = from;
    from.value = box.origin[d];
    end.value = box.origin[d] + box.size[d];
    region_->keep_sign(from);
    a.tiled &= from.value >= 0;
    sides[d] = {.from = from, .ends = forms.ends[d]};
    sides[d].ends.push_back(end);
  }
  std::optional<Mask> mask = masks_->mask(sides, forms.there, *region_);
  if (!mask) return;
  if (fold_depth_ == 0 || ordered_) return append(a, masks_->number(*mask));
  for (Pending& p : pending_) {
    if (p.access.op != a.op || p.which != which) continue;
    if (join_open(p, a, *mask)) return;
    append(p.access, masks_->number(p.mask));
    p.access = a;
    p.mask = *mask;
    return;
  }
  pending_.push_back({a, which, {}, *mask});
}

// Where they lie side by side at all sizes.
bool TraceRecorder::join_open(Pending& known, const Access& a, const Mask& mask) {
  bool same = known.access.tensor == a.tensor && known.access.rank == a.rank &&
              known.access.may == a.may && known.access.choice == a.choice;
  std::optional<std::pair<Box, Box>> boxes = masks_->beside(known.mask, mask);
  if (!same || !boxes) return false;
  auto [box, next] = *boxes;
  bool tiled = known.access.tiled && a.tiled && joins(a, box, next);
  if (!extend_box(box, next, a.kind == AccessKind::kWrite && !a.may)) return false;
  known.mask = masks_->widened(known.mask, mask, box);
  known.access.tiled = tiled;
  return true;
}

// Whether one box may stand for both: then in the wider of the two cases.
bool TraceRecorder::in_one_case(const Access& a, const Access& b) const {
  if (a.choice == b.choice) return a.sure == b.sure;
  return !a.sure && !b.sure && graph_.choices->values(a.choice) == graph_.choices->values(b.choice);
}

void TraceRecorder::append(Access a, const Box& box) {
  auto [it, is_new] = box_ids_.try_emplace(box, static_cast<int>(graph_.boxes.size()));
  if (is_new) graph_.boxes.push_back(box);
  append(a, it->second);
}

void TraceRecorder::append(Access a, int box) {
  a.box = box;
  budget_.step(a.op->loc, kKept);
  AgentTrace& agent = graph_.agents.back();
  a.pos = static_cast<int>(agent.syncs.size());
  agent.accesses.push_back(a);
}

}  // namespace stretto
