#include "stretto/proof/reuse_frontier.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/proof/meetings.h"
#include "stretto/proof/time_limit.h"

namespace stretto {
namespace {

using Mark = HappensBefore::Mark;

// Calls fn(ref) for each access.
template <typename Fn>
void for_each_access(const TensorUse& use, const Fn& fn) {
  for (const BoxUse& box : use.uses) {
    for (const auto* refs : {&box.reads, &box.writes}) {
      for (const AccessRef& ref : *refs) {
        TimeLimit::look();
        fn(ref);
      }
    }
  }
}

int rank_of(const InstanceGraph& graph, const AccessRef& ref) {
  return graph.agents[at(ref.agent)].rank;
}

bool writes(const AccessRef& ref) { return ref.access->kind != AccessKind::kRead; }

// Of accesses that a rank makes in one way, the last of one component. That it is over is passed on
// as `passed`.
struct Last {
  int rank;
  bool writes;
  Past past, passed;
  int when;
  ProgramPoint point;
  Mark mark;
};

// None where it is not known when one of them is over.
std::optional<std::vector<Last>> last_of(const LaunchUse& earlier, const HappensBefore& order,
                                         AccessPaths& paths) {
  using Key = std::tuple<int, bool, Past, int, int>;  // and of which component
  std::map<Key, Last> last;
  bool known = true;
  for_each_access(earlier.use, [&](const AccessRef& ref) {
    int rank = rank_of(earlier.graph, ref), when = ref.access->when;
    for (Past past : paths.pasts(earlier.graph, ref)) {
      ProgramPoint x = point_of(ref, earlier.launch);
      std::optional<std::pair<Past, Mark>> over = order.over_at(x, past);
      if (!over) {
        known = false;
        return;
      }
      auto [passed, mark] = *over;
      Last one{rank, writes(ref), past, passed, when, x, mark};
      auto [it, is_new] = last.try_emplace({rank, one.writes, past, when, mark.component}, one);
      if (!is_new && it->second.mark.position < mark.position) it->second = one;
    }
  });
  if (!known) return {};
  std::vector<Last> out;
  for (auto& [key, one] : last) out.push_back(std::move(one));
  return out;
}

// What is known of accesses' ends, by how they are passed on.
using Known = std::array<std::int32_t, kNumPasts>;

// Of accesses that an agent makes in one way, the first.
struct First {
  int rank;
  bool writes;
  Path path;
  int choice;
  ProgramPoint point;
  Known known{};
};

// Of those that know the same one.
std::vector<First> first_of(const LaunchUse& later, const HappensBefore& order,
                            AccessPaths& paths) {
  std::map<std::tuple<int, bool, Path, int>, First> first;
  for_each_access(later.use, [&](const AccessRef& ref) {
    int rank = rank_of(later.graph, ref), choice = ref.access->choice;
    ProgramPoint y = point_of(ref, later.launch);
    for (Path path : paths.paths(later.graph, ref)) {
      First one{rank, writes(ref), path, choice, y};
      auto [it, is_new] = first.try_emplace({ref.agent, one.writes, path, choice}, one);
      if (!is_new && y.pos < it->second.point.pos) it->second = one;
    }
  });
  std::map<std::tuple<int, bool, Path, int, Known>, First> alike;
  for (auto& [key, one] : first) {
    for (std::size_t p = 0; p < kNumPasts; ++p) {
      one.known[p] = order.knowledge(one.point, static_cast<Past>(p), one.path, one.choice);
    }
    alike.try_emplace({one.rank, one.writes, one.path, one.choice, one.known}, one);
  }
  std::vector<First> out;
  for (auto& [key, one] : alike) out.push_back(std::move(one));
  return out;
}

}  // namespace

bool over_before_launch(const LaunchUse& earlier, const LaunchUse& later,
                        const HappensBefore& order, AccessPaths& paths) {
  std::optional<std::vector<Last>> xs = last_of(earlier, order, paths);
  if (!xs) return false;
  std::vector<First> ys = first_of(later, order, paths);
  return std::all_of(ys.begin(), ys.end(), [&](const First& y) {
    TimeLimit::look();
    return std::all_of(xs->begin(), xs->end(), [&](const Last& x) {
      if (x.rank == y.rank || !(x.writes || y.writes)) return true;
      // HappensBefore::before(), of which the later access's part is known.
      return order.reaches(x.passed, y.known[static_cast<std::size_t>(x.passed)], x.mark) ||
             order.before_by_end(x.point, y.point, x.past, y.path, x.when, y.choice);
    });
  });
}

}  // namespace stretto
