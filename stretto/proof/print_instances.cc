#include "stretto/proof/print_instances.h"

#include <fmt/format.h>

#include "stretto/proof/expand.h"
#include "stretto/proof/sample.h"

namespace stretto {
namespace {

std::string sync_line(const InstanceGraph& graph, const Sync& s) {
  switch (s.kind) {
    case SyncKind::kNotify:
      return fmt::format("notify {} by {}", describe_counter(graph, s.counter), s.amount);
    case SyncKind::kWait:
      return fmt::format("wait {} >= {}", describe_counter(graph, s.counter), s.amount);
    case SyncKind::kFence:
      return "fence";
    case SyncKind::kPacketStore:
      return "store packets";
    case SyncKind::kPacketLoad:
      return "wait for packets";
  }
  return "";
}

// Where a table decides what is done, the launch with the lowest entries, which the text says.
InstanceGraph expanded(const Program& program, const std::vector<std::int64_t>& extents,
                       std::string& text) {
  try {
    return expand(program, extents);
  } catch (const DependsOnTable& reason) {
    text = fmt::format("a table decides {}; with one whose entries are as low as they may be:\n",
                       reason.what);
  }
  return expand(program, extents, sample_tables(program, extents).front().get());
}

}  // namespace

std::string print_instances(const Program& program, const std::vector<std::int64_t>& extents) {
  std::string text;
  InstanceGraph graph = expanded(program, extents, text);
  for (std::size_t i = 0; i < graph.agents.size(); ++i) {
    const AgentTrace& agent = graph.agents[i];
    if (agent.syncs.empty() && agent.accesses.empty()) continue;
    text += describe_agent(graph, static_cast<int>(i), -1) + "\n";
    std::size_t next = 0;
    auto accesses_before = [&](int pos) {
      for (; next < agent.accesses.size() && agent.accesses[next].pos <= pos; ++next) {
        const Access& a = agent.accesses[next];
        text += fmt::format("  tile {:<4} {}  {}\n", a.tile, describe_access(graph, a),
                            describe_loc(a.op));
      }
    };
    for (std::size_t s = 0; s < agent.syncs.size(); ++s) {
      accesses_before(static_cast<int>(s));
      text += fmt::format("  tile {:<4} {}  {}\n", agent.syncs[s].tile,
                          sync_line(graph, agent.syncs[s]), describe_loc(agent.syncs[s].op));
    }
    accesses_before(static_cast<int>(agent.syncs.size()));
  }
  return text;
}

}  // namespace stretto
