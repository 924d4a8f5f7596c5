#include "stretto/ops/moe/ep_desc.h"

#include <fmt/format.h>

namespace stretto {

ExpertSplit split_of(const EpDesc& d) {
  return {.num_experts = d.num_experts, .world_size = d.world_size, .groups = d.expert_groups};
}

std::string to_string(const EpDesc& d) {
  return fmt::format("m={} hidden={} top {} of {} experts in {} groups {} P={}", d.m, d.hidden,
                     d.top_k, d.num_experts, d.expert_groups, short_name(d.dtype), d.world_size);
}

}  // namespace stretto
