#include "stretto/proof/size_spans.h"

#include <map>
#include <optional>

#include "stretto/proof/size_masks.h"

namespace stretto {
namespace {

// What an access touches at all sizes of the region; absent where an end of it is not known.
std::optional<Box> span_of(const InstanceGraph& graph, const Access& a, const SizeRegion& region) {
  Box span = graph.boxes[static_cast<std::size_t>(a.box)];
  for (std::size_t d = 0; d < graph.shapes[static_cast<std::size_t>(a.tensor)].size(); ++d) {
    auto dim = static_cast<int>(d);
    const SizeForm* lo = region.end_at(a.tensor, a.rank, dim, span.lo[d]);
    const SizeForm* hi = region.end_at(a.tensor, a.rank, dim, span.hi[d]);
    if (lo == nullptr || hi == nullptr) return {};
    span.lo[d] = region.least(*lo);
    span.hi[d] = region.most(*hi);
  }
  return span;
}

}  // namespace

void note_spans(InstanceGraph& graph, SizeRegion& region) {
  std::map<Box, int> numbers;
  for (AgentTrace& agent : graph.agents) {
    for (Access& a : agent.accesses) {
      std::optional<Box> span = span_of(graph, a, region);
      if (!span) {
        region.keep_sample_alone();
        span = span_of(graph, a, region);
      }
      if (!span || *span == graph.boxes[static_cast<std::size_t>(a.box)]) continue;
      auto [it, is_new] = numbers.try_emplace(*span, static_cast<int>(graph.boxes.size()));
      if (is_new) graph.boxes.push_back(*span);
      a.span = it->second;
      graph.has_spans = true;
    }
  }
}

void settle_masks(InstanceGraph& graph, const SizeRegion& region) {
  graph.masks->settle(region);
  for (int m = 0; m < static_cast<int>(graph.masks->size()); ++m) {
    graph.boxes.push_back(graph.masks->hull(m));
    graph.mask_of_box.push_back(m);
  }
}

}  // namespace stretto
