#include "stretto/proof/packet_links.h"

#include <map>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/proof/overlap.h"
#include "stretto/proof/size_masks.h"

namespace stretto {
namespace {

// Of one rank's tensor.
struct Group {
  std::vector<int> stores, loads;  // boxes of the graph
  std::vector<PacketLoad::Store> store_places;
  std::vector<PacketLoad> found;
};

std::vector<Box> boxes_of(const InstanceGraph& graph, const std::vector<int>& numbers) {
  std::vector<Box> boxes;
  for (int n : numbers) boxes.push_back(graph.boxes[at(n)]);
  return boxes;
}

std::vector<int> masks_of(const InstanceGraph& graph, const std::vector<int>& numbers) {
  std::vector<int> masks;
  for (int n : numbers) masks.push_back(graph.mask_of_box[at(n)]);
  return masks;
}

void link(const InstanceGraph& graph, Group& group) {
  std::vector<Box> loads = boxes_of(graph, group.loads), stores = boxes_of(graph, group.stores);
  std::vector<std::vector<Box>> pieces(loads.size());
  for_each_overlap(loads, stores, [&](std::size_t load, std::size_t store) {
    group.found[load].stores.push_back(group.store_places[store]);
    pieces[load].push_back(stores[store]);
  });
  for (std::size_t l = 0; l < loads.size(); ++l) {
    group.found[l].covered = uncovered(loads[l], pieces[l]).empty();
  }
}

void link_open(const InstanceGraph& graph, Group& group) {
  const SizeMasks& masks = *graph.masks;
  std::vector<int> loads = masks_of(graph, group.loads), stores = masks_of(graph, group.stores);
  std::vector<std::vector<int>> pieces(loads.size());
  masks.for_each_meeting(loads, stores, [&](std::size_t load, std::size_t store) {
    PacketLoad::Store place = group.store_places[store];
    place.always = masks.meet_always(loads[load], stores[store]);
    group.found[load].stores.push_back(place);
    pieces[load].push_back(stores[store]);
  });
  for (std::size_t l = 0; l < loads.size(); ++l) {
    group.found[l].covered = masks.covers(loads[l], pieces[l]);
  }
}

}  // namespace

void link_packets(InstanceGraph& graph) {
  std::map<std::pair<int, int>, Group> groups;  // (tensor, rank)
  for (int a = 0; a < static_cast<int>(graph.agents.size()); ++a) {
    const AgentTrace& trace = graph.agents[at(a)];
    for (int pos = 0; pos < static_cast<int>(trace.syncs.size()); ++pos) {
      const Sync& s = trace.syncs[at(pos)];
      bool stores = s.kind == SyncKind::kPacketStore;
      if ((!stores && s.kind != SyncKind::kPacketLoad) || s.access < 0) continue;
      const Access& access = trace.accesses[at(s.access)];
      Group& group = groups[{access.tensor, access.rank}];
      if (stores) {
        group.stores.push_back(access.box);
        group.store_places.push_back({a, pos});
      } else {
        group.loads.push_back(access.box);
        group.found.push_back({.agent = a, .pos = pos, .stores = {}});
      }
    }
  }
  for (auto& [key, group] : groups) {
    graph.masks == nullptr ? link(graph, group) : link_open(graph, group);
    for (PacketLoad& load : group.found) graph.packet_loads.push_back(std::move(load));
  }
}

}  // namespace stretto
