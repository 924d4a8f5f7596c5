#include "stretto/proof/sync_kinds.h"

#include <algorithm>

namespace stretto {
namespace {

bool alike(const Sync& a, const Sync& b) {
  return a.kind == b.kind && a.counter == b.counter && a.amount == b.amount && a.choice == b.choice;
}

bool alike(const AgentTrace& a, const AgentTrace& b) {
  return std::equal(a.syncs.begin(), a.syncs.end(), b.syncs.begin(), b.syncs.end(),
                    [](const Sync& x, const Sync& y) { return alike(x, y); });
}

bool alike(const PacketLoad& a, const PacketLoad& b) {
  return a.agent == b.agent && a.pos == b.pos && a.covered == b.covered &&
         std::equal(a.stores.begin(), a.stores.end(), b.stores.begin(), b.stores.end(),
                    [](const PacketLoad::Store& x, const PacketLoad::Store& y) {
                      return x.agent == y.agent && x.pos == y.pos;
                    });
}

bool alike(const InstanceGraph& a, const InstanceGraph& b) {
  return std::equal(a.agents.begin(), a.agents.end(), b.agents.begin(), b.agents.end(),
                    [](const AgentTrace& x, const AgentTrace& y) { return alike(x, y); }) &&
         std::equal(a.packet_loads.begin(), a.packet_loads.end(), b.packet_loads.begin(),
                    b.packet_loads.end(),
                    [](const PacketLoad& x, const PacketLoad& y) { return alike(x, y); });
}

}  // namespace

std::vector<int> synchronisation_kinds(const std::vector<const InstanceGraph*>& graphs) {
  std::vector<int> kinds;
  std::vector<std::size_t> first_of_kind;
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    std::size_t kind = 0;
    while (kind < first_of_kind.size() && !alike(*graphs[first_of_kind[kind]], *graphs[g])) ++kind;
    if (kind == first_of_kind.size()) first_of_kind.push_back(g);
    kinds.push_back(static_cast<int>(kind));
  }
  return kinds;
}

const Op* first_difference(const InstanceGraph& a, const InstanceGraph& b) {
  for (std::size_t i = 0; i < a.agents.size(); ++i) {
    const auto &x = a.agents[i].syncs, &y = b.agents[i].syncs;
    auto [in_x, in_y] = std::mismatch(x.begin(), x.end(), y.begin(), y.end(),
                                      [](const Sync& s, const Sync& t) { return alike(s, t); });
    if (in_x != x.end()) return in_x->op;
    if (in_y != y.end()) return in_y->op;
  }
  return nullptr;
}

bool waits_by_table(const InstanceGraph& graph) {
  return std::any_of(graph.agents.begin(), graph.agents.end(), [](const AgentTrace& agent) {
    return std::any_of(agent.syncs.begin(), agent.syncs.end(),
                       [](const Sync& s) { return s.choice != TableChoices::kAlways; });
  });
}

}  // namespace stretto
