#include "stretto/proof/access_index.h"

#include <unordered_map>

#include "stretto/proof/overlap.h"
#include "stretto/proof/size_masks.h"

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
        auto box = static_cast<std::size_t>(access.box);
        int mask = graph.masks == nullptr ? -1 : graph.mask_of_box[box];
        index[t].uses.push_back({graph.boxes[box], mask, {}, {}});
      }
      index[t].remote |= graph.agents[a].rank != access.rank;
      BoxUse& use = index[t].uses[it->second];
      (access.kind == AccessKind::kRead ? use.reads : use.writes)
          .push_back({static_cast<int>(a), static_cast<int>(i), &access});
    }
  }
  for (TensorUse& t : index) {
    for (std::size_t u = 0; u < t.uses.size(); ++u) {
      if (!t.uses[u].writes.empty()) t.written.push_back(u);
    }
  }
  return index;
}

std::vector<Box> boxes_of(const TensorUse& use) {
  std::vector<Box> boxes;
  boxes.reserve(use.uses.size());
  for (const BoxUse& u : use.uses) boxes.push_back(u.box);
  return boxes;
}

Writes writes_of(const TensorUse& use) {
  Writes out;
  for (std::size_t u : use.written) {
    for (const AccessRef& w : use.uses[u].writes) {
      if (w.access->kind != AccessKind::kWrite) continue;
      out.boxes.push_back(use.uses[u].box);
      out.masks.push_back(use.uses[u].mask);
      out.refs.push_back(w);
    }
  }
  return out;
}

Writes uses_at(const TensorUse& use, const std::vector<std::size_t>& idx) {
  Writes out;
  for (std::size_t i : idx) {
    out.boxes.push_back(use.uses[i].box);
    out.masks.push_back(use.uses[i].mask);
  }
  return out;
}

bool is_covered(const InstanceGraph& graph, const BoxUse& use, const Writes& by) {
  if (graph.masks != nullptr) return graph.masks->covers(use.mask, by.masks);
  return uncovered(use.box, by.boxes).empty();
}

Box hole_in(const Box& box, const Writes& by) {
  std::vector<Box> holes = uncovered(box, by.boxes);
  return holes.empty() ? box : holes.front();
}

bool is_filled(const InstanceGraph& graph, int tensor, const Writes& by) {
  if (graph.masks != nullptr) {
    int whole = graph.whole_tensors[static_cast<std::size_t>(tensor)];
    return whole < 0 || graph.masks->covers(whole, by.masks);
  }
  std::int64_t written = 0;
  for (const Box& box : by.boxes) written += volume(box);
  return written == volume(whole_tensor(graph, tensor));
}

void for_each_overlap(const InstanceGraph& graph, const Writes& writes, const OnOverlap& fn) {
  if (graph.masks == nullptr) return for_each_overlap(writes.boxes, writes.boxes, fn);
  graph.masks->for_each_meeting(writes.masks, writes.masks, fn);
}

void for_each_overlap(const InstanceGraph& graph, const TensorUse& use, const OnOverlap& fn) {
  if (graph.masks == nullptr) {
    std::vector<Box> written_boxes;
    for (std::size_t u : use.written) written_boxes.push_back(use.uses[u].box);
    return for_each_overlap(written_boxes, boxes_of(use), fn);
  }
  std::vector<int> written, all;
  for (std::size_t u : use.written) written.push_back(use.uses[u].mask);
  for (const BoxUse& u : use.uses) all.push_back(u.mask);
  graph.masks->for_each_meeting(written, all, fn);
}

}  // namespace stretto
