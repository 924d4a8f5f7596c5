#include "stretto/ops/moe/ep_desc.h"

#include <fmt/format.h>

namespace stretto {

ExpertSplit split_of(const EpDesc& d) {
  return {.num_experts = d.shape.num_experts,
          .world_size = d.shape.world_size,
          .groups = d.expert_groups};
}

NamedFields fields_of(EpDesc& d) {
  return {{"m", d.shape.m},
          {"hidden", d.hidden},
          NamedField("top_k", d.shape.top_k).as("top {}"),
          NamedField("num_experts", d.shape.num_experts).as("of {} experts"),
          NamedField("expert_groups", d.expert_groups).as("in {} groups"),
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.shape.world_size).as("P={}")};
}

}  // namespace stretto
