#include "stretto/ops/moe/expert_shape.h"

namespace stretto {

NamedFields fields_of(ExpertShape& s) {
  return {NamedField("world_size", s.world_size).as("P={}"),
          {"m", s.m},
          NamedField("top_k", s.top_k).as("top {}"),
          NamedField("num_experts", s.num_experts).as("of {} experts")};
}

}  // namespace stretto
