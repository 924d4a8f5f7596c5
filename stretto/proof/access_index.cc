#include "stretto/proof/access_index.h"

#include <unordered_map>

namespace stretto {

std::vector<TensorUse> index_accesses(const InstanceGraph& graph) {
  auto world = static_cast<std::size_t>(graph.program->world_size);
  std::size_t num_tensors = graph.program->tensors.size();
  std::vector<TensorUse> index(num_tensors * world);
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i].tensor = static_cast<int>(i / world);
    index[i].rank = static_cast<int>(i % world);
  }
  std::vector<std::unordered_map<int, std::size_t>> seen(index.size());  // box id -> use
  for (std::size_t a = 0; a < graph.agents.size(); ++a) {
    const auto& accesses = graph.agents[a].accesses;
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      const Access& access = accesses[i];
      std::size_t t =
          static_cast<std::size_t>(access.tensor) * world + static_cast<std::size_t>(access.rank);
      auto [it, is_new] = seen[t].try_emplace(access.box, index[t].uses.size());
      if (is_new) {
        index[t].uses.push_back({graph.boxes[static_cast<std::size_t>(access.box)], {}, {}});
      }
      index[t].remote |= graph.agents[a].rank != access.rank;
      BoxUse& use = index[t].uses[it->second];
      (access.kind == AccessKind::kRead ? use.reads : use.writes)
          .push_back({static_cast<int>(a), static_cast<int>(i), &access});
    }
  }
  for (TensorUse& t : index) {
    for (std::size_t u = 0; u < t.uses.size(); ++u) {
      t.boxes.push_back(t.uses[u].box);
      if (t.uses[u].writes.empty()) continue;
      t.written.push_back(u);
      t.written_boxes.push_back(t.uses[u].box);
    }
  }
  return index;
}

Writes writes_of(const TensorUse& use) {
  Writes out;
  for (std::size_t u : use.written) {
    for (const AccessRef& w : use.uses[u].writes) {
      if (w.access->kind != AccessKind::kWrite) continue;
      out.boxes.push_back(use.uses[u].box);
      out.refs.push_back(w);
    }
  }
  return out;
}

}  // namespace stretto
