#include "stretto/proof/access_runs.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stretto {
namespace {

// Each of y comes after the last of x before it.
bool follows(const AccessRun& x, const AccessRun& y, const Before& before) {
  std::size_t next = 0;
  for (const AccessRef& ref : y.refs) {
    while (next < x.refs.size() && x.refs[next].idx < ref.idx) ++next;
    if (next > 0 && !before(x.refs[next - 1], ref)) return false;
  }
  return true;
}

}  // namespace

std::vector<AccessRun> runs_of(const std::vector<AccessRef>& refs, const InstanceGraph& graph,
                               AccessPaths& paths) {
  // Agent, kind, packet, by TMA, the threads, where its loads land.
  using Way = std::tuple<int, AccessKind, bool, bool, int, int>;
  std::map<Way, std::size_t> last;  // the run that grows
  std::vector<AccessRun> runs;
  for (const AccessRef& ref : refs) {
    const Access& a = *ref.access;
    if (a.choice != TableChoices::kAlways) return {};
    Way way = {ref.agent,     a.kind, a.packet, paths.bulk(graph, ref), paths.dealt_out(graph, ref),
               a.landed.agent};
    auto [it, is_new] = last.try_emplace(way, runs.size());
    bool grows = !is_new;
    if (grows) {
      const AccessRef& end = runs[it->second].refs.back();
      grows =
          end.idx <= ref.idx && end.access->pos <= a.pos && end.access->landed.pos <= a.landed.pos;
    }
    if (!grows) {
      it->second = runs.size();
      runs.emplace_back();
    }
    runs[it->second].refs.push_back(ref);
  }
  return runs;
}

bool of_all_runs(const std::vector<AccessRun>& xs, const std::vector<AccessRun>& ys,
                 const std::function<bool(const AccessRun&, const AccessRun&)>& holds) {
  if (xs.empty() || ys.empty()) return false;
  return std::all_of(xs.begin(), xs.end(), [&](const AccessRun& x) {
    return std::all_of(ys.begin(), ys.end(), [&](const AccessRun& y) { return holds(x, y); });
  });
}

bool ordered_either_way(const AccessRun& x, const AccessRun& y, const Before& before) {
  std::size_t after = 0;  // the first of y that comes after the present x; later for a later x
  for (const AccessRef& ref : x.refs) {
    while (after < y.refs.size() && !before(ref, y.refs[after])) ++after;
    if (after > 0 && !before(y.refs[after - 1], ref)) return false;
  }
  return true;
}

bool ordered_in_turn(const AccessRun& x, const AccessRun& y, const Before& before) {
  return follows(x, y, before) && follows(y, x, before);
}

}  // namespace stretto
