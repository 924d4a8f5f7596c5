#include "stretto/ops/moe/grouped_gemm.h"

namespace stretto {

ExpertSplit split_of(const GroupedDesc& d) {
  return {.num_experts = d.num_experts, .world_size = d.world_size, .groups = d.expert_groups};
}

const char* name(RowLayout layout) {
  return layout == RowLayout::kMasked ? "masked" : "contiguous";
}

NamedFields fields_of(GroupedDesc& d) {
  return joined({NamedField("world_size", d.world_size).as("P={}"),
                 {"m", d.m},
                 {"rows_per_token", d.rows_per_token, 1},
                 {"num_experts", d.num_experts},
                 NamedField("expert_groups", d.expert_groups, 1).as("in {} groups"),
                 {"spare_rows", d.spare_rows},
                 {"n", d.n},
                 {"k", d.k},
                 NamedField("a_dtype", d.a_dtype).as("a={}"),
                 NamedField("b_dtype", d.b_dtype).as("b={}"),
                 NamedField("result_dtype", d.c_dtype).as("c={}"),
                 {"gathered", d.gathered},
                 {"swiglu", d.swiglu},
                 {"bias", d.bias},
                 NamedField("layout", d.layout, {RowLayout::kContiguous, RowLayout::kMasked},
                            RowLayout::kContiguous)
                     .as("{}"),
                 scaling_field(d.scaling)},
                fields_of(d.gate));
}

NamedFields fields_of(GroupedConfig& c) {
  return with_rest({tile_field(c.loop.tile),
                    {"row_parts", c.row_parts},
                    {"compute", c.loop.num_compute_sms},
                    {"stages", c.loop.num_stages},
                    {"tickets", c.tickets},
                    {"swap_ab", c.swap_ab}},
                   c.loop);
}

}  // namespace stretto
