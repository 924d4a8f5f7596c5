#include "stretto/proof/short_waits.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {
namespace {

using Syncs = std::vector<Sync>;

// The first notify of the counter after `point`, if any.
const Sync* notify_after(const Syncs& syncs, const ProgramPoint& point, int counter) {
  auto it = std::find_if(syncs.begin() + point.pos, syncs.end(), [&](const Sync& s) {
    return s.kind == SyncKind::kNotify && s.counter == counter;
  });
  return it == syncs.end() ? nullptr : &*it;
}

// Of waits before `after` for what the agent of `before` notifies behind it.
std::string short_wait(const Timeline& timeline, const ProgramPoint& before,
                       const ProgramPoint& after) {
  const Syncs& notifies = timeline.trace(before.agent, before.launch).syncs;
  const Syncs& waits = timeline.trace(after.agent, after.launch).syncs;
  const InstanceGraph& graph = timeline.launch(after.launch);
  for (int i = after.pos - 1; i >= 0; --i) {
    const Sync& wait = waits[static_cast<std::size_t>(i)];
    if (wait.kind != SyncKind::kWait) continue;
    if (graph.counters[static_cast<std::size_t>(wait.counter)].kind != CounterKind::kSignal)
      continue;
    const Sync* notify = notify_after(notifies, before, wait.counter);
    if (notify == nullptr) continue;
    return fmt::format("the wait at {} for {} to reach {} may end without the notify at {}",
                       describe_loc(wait.op), describe_counter(graph, wait.counter), wait.amount,
                       describe_loc(notify->op));
  }
  return {};
}

}  // namespace

std::string short_waits(const Timeline& timeline, const ProgramPoint& x, const ProgramPoint& y) {
  std::string there = short_wait(timeline, x, y), back = short_wait(timeline, y, x);
  if (there.empty() && back.empty())
    return "neither waits for a signal that the other sends afterwards";
  return there + (there.empty() || back.empty() ? "" : ",\n    and ") + back;
}

}  // namespace stretto
