#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {

EpMoeLayerConfig ep_moe_layer_config(const EpMoeLayerDesc& d, const OpShape& s) {
  EpMoeLayerConfig c = default_config(d, s.target);
  if (!s.test_config || s.target == Target::kCuda) return c;
  c.first.loop.num_compute_sms = c.second.loop.num_compute_sms = 3;
  if (d.shape.m > 64) return c;
  c.first.loop.tile.bm = c.second.loop.tile.bm =
      std::min<std::int64_t>(4, d.shape.m * d.shape.top_k);
  c.first.comm_rows = c.tell_tokens = std::min<std::int64_t>(2, d.shape.rows_per_rank());
  c.second.last_rows = 1;
  c.second.last_rounds = 2;
  c.tables.block_tokens = std::min<std::int64_t>(c.tables.block_tokens, 3);
  c.tables.part_blocks = 2;
  c.tables.tile_rows = 8;
  return c;
}

EpMoeLayerDesc ep_moe_layer_desc(const OpShape& s) {
  EpMoeLayerDesc d{.shape = {.world_size = s.world_size,
                             .m = s.m > 0 ? s.m : 64,
                             .top_k = 2,
                             .num_experts = s.m > 1000 ? 32 : 5},
                   .expert_groups = s.world_size,
                   .hidden = s.k > 0 ? s.k : 128,
                   .ffn = s.n > 0 ? s.n : 128,
                   .dtype = s.dtype};
  if (s.test_config && (d.shape.m == 9 || has_biases(s)) && d.shape.world_size % 2 == 0)
    d.expert_groups = d.shape.world_size / 2;
  d.residual = d.shape.m % 2 == 0;
  d.biases = has_biases(s);
  d.gate = gate_of(s);
  return d;
}

OperatorInfo ep_moe_layer_info() {
  return {
      .name = "ep_moe_layer",
      .summary = "m tokens of size k to their 2 experts of inner size n and back, routed inside",
      .program =
          [](const OpShape& s) {
            return ep_moe_layer(ep_moe_layer_desc(s), ep_moe_layer_config(ep_moe_layer_desc(s), s));
          },
      .shapes = [](int world_size) -> std::vector<OpShape> {
        return with_test_configs(
            {{.world_size = world_size, .m = 9, .n = 13, .k = 19, .dtype = DType::kF32},
             {.world_size = world_size, .m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
             {.world_size = world_size, .m = 67, .n = 136, .k = 136, .dtype = DType::kBF16},
             {.world_size = world_size,
              .m = kRowsWithBiases,
              .n = 24,
              .k = 40,
              .dtype = DType::kBF16}});
      },
      .large = {.m = 8192, .n = 1792, .k = 4096, .dtype = DType::kBF16},
      .tables =
          [](const OpShape& s) {
            const EpMoeLayerDesc d = ep_moe_layer_desc(s);
            return even_routing(d, ep_moe_layer_config(d, s));
          }};
}

}  // namespace stretto
