#include <algorithm>

#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {
namespace {

OperatorInfo info(const char* name, const char* summary, RouteDesc (*desc)(const OpShape&),
                  std::vector<OpShape> shapes) {
  return {
      .name = name,
      .summary = summary,
      .program = [desc](const OpShape& s) { return moe_route(desc(s), route_config(desc(s), s)); },
      .shapes =
          [shapes](int world_size) {
            std::vector<OpShape> at_size = shapes;
            for (OpShape& s : at_size) s.world_size = world_size;
            return with_test_configs(at_size);
          },
      .large = {.m = 512, .n = 128, .k = 2048, .dtype = DType::kBF16}};
}

}  // namespace

RouteDesc route_desc(const OpShape& s) {
  const std::int64_t num_experts = s.n > 0 ? s.n : 16;
  return {.shape = {.world_size = s.world_size,
                    .m = s.m > 0 ? s.m : 64,
                    .top_k = std::min<std::int64_t>(num_experts, 3),
                    .num_experts = num_experts},
          .hidden = s.k > 0 ? s.k : 128,
          .dtype = s.dtype,
          .weight_dtype = s.dtype,
          .norm_topk_prob = s.m % 2 == 1};
}

RouteDesc limited_route_desc(const OpShape& s) {
  RouteDesc d = route_desc(s);
  d.shape.num_experts = std::max<std::int64_t>(d.shape.num_experts / 8, 1) * 8;
  d.scoring_func = Scoring::kSigmoid;
  d.bias = true;
  d.n_group = d.shape.num_experts > 100 ? 8 : 4;
  d.topk_group = d.n_group / 2;
  d.norm_topk_prob = true;
  d.routed_scaling_factor = 2.5;
  return d;
}

RouteConfig route_config(const RouteDesc& d, const OpShape& s) {
  return s.test_config ? test_route_config(d, s.target) : default_config(d, s.target);
}

RouteConfig test_route_config(const RouteDesc& d, Target target) {
  RouteConfig c = default_config(d, target);
  if (target == Target::kCuda) return c;
  c.tile_rows = std::min<std::int64_t>(c.tile_rows, 4);
  c.score_rows = 2 * c.tile_rows;
  c.score_experts = 5;
  c.placing.part_tokens = c.tile_rows * std::min<std::int64_t>(ceil_div(d.shape.m, c.tile_rows), 2);
  c.placing.count_tokens = c.tile_rows;
  c.placing.count_experts = 5;
  c.num_groups = 2;
  c.placing.add_counts = 24;
  c.placing.tile_slots = std::min<std::int64_t>(c.placing.tile_slots, 8);
  // A worker for every tile, which may come in any order.
  c.num_workers = static_cast<int>(ceil_div(d.shape.m, c.tile_rows) +
                                   2 * ceil_div(d.shape.m, c.placing.part_tokens) +
                                   ceil_div(d.shape.m * d.shape.top_k, c.placing.tile_slots));
  return c;
}

OperatorInfo moe_route_info() {
  return info("moe_route", "top 3 of n experts for m tokens of hidden size k, and their rows",
              route_desc,
              {{.m = 11, .n = 7, .k = 19, .dtype = DType::kF32},
               {.m = 6, .n = 16, .k = 32, .dtype = DType::kBF16},
               {.m = 1, .n = 2, .k = 8, .dtype = DType::kF16}});
}

OperatorInfo moe_route_limited_info() {
  return info("moe_route_limited",
              "top 3 of n experts by sigmoid and bias within the best groups, m tokens of size k",
              limited_route_desc,
              {{.m = 1, .n = 8, .k = 8, .dtype = DType::kF16},
               {.m = 7, .n = 16, .k = 32, .dtype = DType::kBF16}});
}

}  // namespace stretto
