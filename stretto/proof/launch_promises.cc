#include "stretto/proof/launch_promises.h"

#include <algorithm>
#include <tuple>

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
    ProgramPoint p = point_of(ref, 0);
    LaunchPromises::Earlier earlier{.rank = rank, .writes = writes, .over = {}};
    Ways<Past> pasts = paths_.pasts(graph_, ref);
    for (std::size_t i = 0; i < earlier.over.size(); ++i) {
      Past past = *std::min(pasts.begin() + i, pasts.end() - 1);
      earlier.over[i] = {past, ends_behind(p, past, ref.access->when)};
    }
    add(box, uses.earlier[earlier]);
    LaunchPromises::Later later{.rank = rank, .writes = writes, .knows = {}};
    for (std::size_t i = 0; i < kNumPasts; ++i) {
      auto past = static_cast<Past>(i);
      later.knows[i] = ~RankSet{0};
      for (Path path : paths_.paths(graph_, ref)) {
        later.knows[i] &= starts_known(past, order_.knowledge(p, past, path, ref.access->choice));
      }
    }
    add(box, uses.later[later]);
  }

  // Boxes come use by use.
  static void add(const Box& box, std::vector<Box>& boxes) {
    if (boxes.empty() || boxes.back() != box) boxes.push_back(box);
  }

  // The ranks before whose ends an access at the place is over.
  RankSet ends_behind(const ProgramPoint& p, Past past, int when) {
    std::optional<std::pair<Past, HappensBefore::Mark>> over = order_.over_at(p, past);
    if (!over) return 0;
    auto [it, is_new] = ends_.try_emplace({over->first, over->second, when}, RankSet{0});
    if (is_new) {
      it->second = ranks([&](int r) { return order_.before_end(p, r, 0, past, when); });
    }
    return it->second;
  }

  RankSet starts_known(Past past, std::int32_t knowledge) {
    auto [it, is_new] = starts_.try_emplace({past, knowledge}, RankSet{0});
    if (is_new) {
      it->second = ranks([&](int r) { return order_.start_reaches(r, 0, past, knowledge); });
    }
    return it->second;
  }

  const InstanceGraph& graph_;
  const HappensBefore& order_;
  int world_;
  AccessPaths paths_;
  std::map<std::tuple<Past, HappensBefore::Mark, int>, RankSet> ends_;
  std::map<std::pair<Past, std::int32_t>, RankSet> starts_;
};

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

bool meet(const std::vector<Box>& a, const std::vector<Box>& b) {
  bool any = false;
  for_each_overlap(a, b, [&](std::size_t, std::size_t) { any = true; });
  return any;
}

template <typename Use>
void join(const std::map<Use, std::vector<Box>>& more, std::map<Use, std::vector<Box>>& all) {
  for (const auto& [use, boxes] : more) {
    std::vector<Box>& joined = all[use];
    joined.insert(joined.end(), boxes.begin(), boxes.end());
  }
}

// What is alike is asked about once; where it touches something, only where that tells.
bool is_free(const Uses& uses, const Passed& passed) {
  for (const auto& [x, x_boxes] : uses.earlier) {
    for (const auto& [y, y_boxes] : uses.later) {
      bool matters = x.rank != y.rank && (x.writes || y.writes);
      if (matters && !is_over(x, y, passed) && meet(x_boxes, y_boxes)) return false;
    }
  }
  return true;
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
      join(uses.earlier, all[place].earlier);
      join(uses.later, all[place].later);
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
