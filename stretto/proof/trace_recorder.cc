#include "stretto/proof/trace_recorder.h"

#include "stretto/base/errors.h"
#include "stretto/proof/reach.h"

namespace stretto {

std::size_t TraceRecorder::BoxHash::operator()(const Box& b) const {
  std::size_t h = 0;
  for (std::size_t d = 0; d < kMaxDims; ++d) {
    h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.lo[d]);
    h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.hi[d]);
  }
  return h ^ (h >> 29);
}

void TraceRecorder::start_agent(const AgentTrace& agent) { graph_.agents.push_back(agent); }

void TraceRecorder::add_sync(const Sync& sync) {
  graph_.agents.back().syncs.push_back(sync);
  if (sync.kind == SyncKind::kNotify) {
    graph_.quota[static_cast<std::size_t>(sync.counter)] += sync.amount;
  }
}

void TraceRecorder::add(const LooseAccess& access) {
  if (diverted_ != nullptr) {
    diverted_->push_back(access);
  } else {
    note_reach(access);
    place(access.access, access.which, clip(access.box));
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
  for (std::size_t d = 0; d < kMaxDims; ++d) {
    reach.box.lo[d] = access.box.origin[d];
    reach.box.hi[d] = access.box.origin[d] + access.box.size[d];
  }
}

void TraceRecorder::begin_fold(bool ordered) {
  if (fold_depth_++ == 0) ordered_ = ordered;
}

void TraceRecorder::end_fold() {
  if (--fold_depth_ > 0) return;
  for (const Pending& p : pending_) append(p.access, p.box);
  pending_.clear();
}

void TraceRecorder::add_affine(const std::vector<LooseAccess>& first,
                               const std::vector<LooseAccess>& second, std::int64_t trips) {
  STRETTO_CHECK(first.size() == second.size(), "an affine loop repeats its accesses");
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Access& a = first[i].access;
    bool is_write = a.kind == AccessKind::kWrite && !a.may;
    if (auto folded = fold_affine(first[i].box, second[i].box, trips, is_write)) {
      note_reach({a, first[i].which, *folded});
      place(a, first[i].which, clip(*folded));
      continue;
    }
    LooseBox box = first[i].box;
    for (std::int64_t k = 0; k < trips; ++k) {
      budget_.step(a.op->loc);
      note_reach({a, first[i].which, box});
      place(a, first[i].which, clip(box));
      for (std::size_t d = 0; d < kMaxDims; ++d) {
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
    if (same && extend_box(p.box, box, a.kind == AccessKind::kWrite && !a.may)) {
      p.access.choice = graph_.choices->common(p.access.choice, a.choice);
      return;
    }
    append(p.access, p.box);
    p.access = a;
    p.box = box;
    return;
  }
  pending_.push_back({a, which, box});
}

// Whether one box may stand for both: then in the wider of the two cases.
bool TraceRecorder::in_one_case(const Access& a, const Access& b) const {
  if (a.choice == b.choice) return a.sure == b.sure;
  return !a.sure && !b.sure && graph_.choices->values(a.choice) == graph_.choices->values(b.choice);
}

void TraceRecorder::append(Access a, const Box& box) {
  auto [it, is_new] = box_ids_.try_emplace(box, static_cast<int>(graph_.boxes.size()));
  if (is_new) graph_.boxes.push_back(box);
  a.box = it->second;
  budget_.step(a.op->loc, kKept);
  AgentTrace& agent = graph_.agents.back();
  a.pos = static_cast<int>(agent.syncs.size());
  agent.accesses.push_back(a);
}

}  // namespace stretto
