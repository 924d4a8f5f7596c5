#include "stretto/proof/launch_promises.h"

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/proof/access_index.h"
#include "stretto/proof/access_paths.h"
#include "stretto/proof/meetings.h"
#include "stretto/proof/overlap.h"

namespace stretto {
namespace {

using Uses = LaunchPromises::Uses;

RankSet only(int rank) { return RankSet{1} << rank; }
// A load by TMA is over where its slot is got, and that is passed on as reads are.
std::size_t passed_as(Past past) {
  return static_cast<std::size_t>(past == Past::kBulkLoad ? Past::kRead : past);
}

class Promising {
 public:
  Promising(const InstanceGraph& touched, const HappensBefore& order)
      : graph_(touched), order_(order), world_(touched.program->world_size) {}

  LaunchPromises promises() {
    LaunchPromises out;
    for (std::size_t p = 0; p < kNumPasts; ++p) {
      auto past = static_cast<Past>(p);
      for (int from = 0; from < world_; ++from) {
        out.passes[p].push_back(ranks([&](int to) {
          return order_.start_reaches(from, 0, past, order_.knowledge_at_end(to, 0, past));
        }));
      }
    }
    for (const TensorUse& use : index_accesses(graph_)) {
      if (use.tensor < 0) continue;
      const Tensor& t = graph_.program->tensors[at(use.tensor)];
      if (t.kind != TensorKind::kBuffer || t.space != Space::kSymmetric) continue;
      Uses& uses = out.uses[{use.tensor, use.rank}];
      for (const BoxUse& box : use.uses) {
        for (const AccessRef& ref : box.reads) add(box.box, ref, uses);
        for (const AccessRef& ref : box.writes) add(box.box, ref, uses);
      }
    }
    return out;
  }

 private:
  template <typename Holds>
  RankSet ranks(const Holds& holds) const {
    RankSet set = 0;
    for (int r = 0; r < world_; ++r) set |= holds(r) ? only(r) : 0;
    return set;
  }

  void add(const Box& box, const AccessRef& ref, Uses& uses) {
    int rank = graph_.agents[at(ref.agent)].rank;
    bool writes = ref.access->kind != AccessKind::kRead;
    Place p = place(ref, 0);
    LaunchPromises::Earlier earlier{.box = box, .rank = rank, .writes = writes, .over = {}};
    Ways<Past> pasts = paths_.pasts(graph_, ref);
    for (std::size_t i = 0; i < earlier.over.size(); ++i) {
      Past past = *std::min(pasts.begin() + i, pasts.end() - 1);
      earlier.over[i] = {
          past, ranks([&](int r) { return order_.before_end(p, r, 0, past, ref.access->when); })};
    }
    uses.earlier.insert(earlier);
    LaunchPromises::Later later{.box = box, .rank = rank, .writes = writes, .knows = {}};
    for (std::size_t i = 0; i < kNumPasts; ++i) {
      auto past = static_cast<Past>(i);
      later.knows[i] = ~RankSet{0};
      for (Path path : paths_.paths(graph_, ref)) {
        std::int32_t known = order_.knowledge(p, past, path, ref.access->choice);
        later.knows[i] &= ranks([&](int r) { return order_.start_reaches(r, 0, past, known); });
      }
    }
    uses.later.insert(later);
  }

  const InstanceGraph& graph_;
  const HappensBefore& order_;
  int world_;
  AccessPaths paths_;
};

template <typename Use>
std::vector<Box> boxes_of(const std::vector<Use>& uses) {
  std::vector<Box> boxes;
  for (const Use& use : uses) boxes.push_back(use.box);
  return boxes;
}

// What passes through `launches` launches of whatever kinds.
std::vector<RankSet> passed(const std::vector<RankSet>& one, int launches) {
  std::vector<RankSet> out;
  for (int from = 0; at(from) < one.size(); ++from) {
    RankSet known = only(from);
    for (int i = 0; i < launches; ++i) {
      RankSet next = 0;
      for (int r = 0; at(r) < one.size(); ++r) next |= (known & only(r)) != 0 ? one[at(r)] : 0;
      if (next == known) break;
      known = next;
    }
    out.push_back(known);
  }
  return out;
}

using Passed = std::array<std::vector<RankSet>, kNumPasts>;

bool is_over(const LaunchPromises::Earlier& x, const LaunchPromises::Later& y,
             const Passed& passed) {
  return std::all_of(x.over.begin(), x.over.end(), [&](const auto& way) {
    std::size_t past = passed_as(way.first);
    for (int r = 0; at(r) < passed[past].size(); ++r) {
      bool knows = (way.second & only(r)) != 0 && (passed[past][at(r)] & y.knows[past]) != 0;
      if (knows) return true;
    }
    return false;
  });
}

bool is_free(const Uses& uses, const Passed& passed) {
  std::vector<LaunchPromises::Earlier> earlier(uses.earlier.begin(), uses.earlier.end());
  std::vector<LaunchPromises::Later> later(uses.later.begin(), uses.later.end());
  bool free = true;
  for_each_overlap(boxes_of(earlier), boxes_of(later), [&](std::size_t i, std::size_t j) {
    const auto& x = earlier[i];
    const auto& y = later[j];
    bool meet = x.rank != y.rank && (x.writes || y.writes);
    if (free && meet && !is_over(x, y, passed)) free = false;
  });
  return free;
}

}  // namespace

LaunchPromises promises_of(const InstanceGraph& touched, const HappensBefore& order) {
  return Promising(touched, order).promises();
}

std::optional<int> slots_in_doubt(const Program& program,
                                  const std::vector<LaunchPromises>& kinds) {
  std::map<std::pair<int, int>, Uses> all;
  Passed through_any = kinds[0].passes;
  for (const LaunchPromises& kind : kinds) {
    for (const auto& [place, uses] : kind.uses) {
      all[place].earlier.insert(uses.earlier.begin(), uses.earlier.end());
      all[place].later.insert(uses.later.begin(), uses.later.end());
    }
    for (std::size_t p = 0; p < kNumPasts; ++p) {
      for (std::size_t r = 0; r < kind.passes[p].size(); ++r) {
        through_any[p][r] &= kind.passes[p][r];
      }
    }
  }
  for (const auto& [place, uses] : all) {
    int slots = program.tensors[at(place.first)].num_slots;
    Passed through;
    for (std::size_t p = 0; p < kNumPasts; ++p) through[p] = passed(through_any[p], slots - 1);
    if (!is_free(uses, through)) return place.first;
  }
  return {};
}

}  // namespace stretto
