#include "stretto/proof/meetings.h"

#include <algorithm>

#include "stretto/proof/overlap.h"
#include "stretto/proof/write_frontier.h"

namespace stretto {
namespace {

// So few readers are looked at one by one.
constexpr std::size_t kFew = 3;

bool writes(const BoxUse& use) {
  return std::any_of(use.writes.begin(), use.writes.end(),
                     [](const AccessRef& x) { return x.access->kind == AccessKind::kWrite; });
}

bool may_be_left_out(const BoxUse& use) {
  return std::any_of(use.writes.begin(), use.writes.end(),
                     [](const AccessRef& x) { return x.access->may; });
}

std::optional<std::vector<std::size_t>> sure_writers(const TensorUse& use, const Meeting& met) {
  std::vector<std::size_t> out;
  for (std::size_t w : met.writers) {
    if (may_be_left_out(use.uses[w])) return std::nullopt;
    if (writes(use.uses[w])) out.push_back(w);
  }
  return out;
}

}  // namespace

Meetings meetings_of(const TensorUse& use, const InstanceGraph& graph, int launch,
                     const HappensBefore& order, AccessPaths& paths) {
  Meetings out{.of_box = std::vector<Meeting>(use.uses.size()), .overlaps = {}};
  for_each_overlap(graph, use, [&](std::size_t w, std::size_t any) {
    out.of_box[any].writers.push_back(use.written[w]);
    out.overlaps.emplace_back(use.written[w], any);
  });
  for (std::size_t u = 0; u < out.of_box.size(); ++u) {
    Meeting& met = out.of_box[u];
    const std::vector<AccessRef>& reads = use.uses[u].reads;
    if (reads.size() < kFew || met.writers.empty()) {
      met.open = reads;
      continue;
    }
    WriteFrontier frontier(order);
    for (std::size_t w : met.writers) {
      for (const AccessRef& x : use.uses[w].writes) {
        for (Past past : paths.pasts(graph, x)) frontier.add(point_of(x, launch), past);
      }
    }
    for (const AccessRef& y : reads) {
      Ways<Path> ways = paths.paths(graph, y);
      bool over = std::all_of(ways.begin(), ways.end(), [&](Path path) {
        return frontier.over_before(point_of(y, launch), path, y.access->choice);
      });
      if (!over) met.open.push_back(y);
    }
    if (met.open.size() < reads.size()) met.sure = sure_writers(use, met);
  }
  return out;
}

}  // namespace stretto
