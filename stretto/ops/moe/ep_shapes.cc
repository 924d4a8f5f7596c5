#include <algorithm>

#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"

namespace stretto {
namespace {

// Tokens of the test whose config has another number of slots than the default.
constexpr std::int64_t kInTurnTokens = 6;

// A decode step of 128 tokens on each of four ranks.
OpShape large_step() { return {.m = 512, .n = 7168, .dtype = DType::kBF16}; }

std::vector<OpShape> shapes(int world_size) {
  return with_test_configs(
      {{.world_size = world_size, .m = 21, .n = 18, .dtype = DType::kF32},
       {.world_size = world_size, .m = 9, .n = 16, .dtype = DType::kBF16},
       {.world_size = world_size, .m = 1, .n = 8, .dtype = DType::kF16},
       {.world_size = world_size, .m = kInTurnTokens, .n = 16, .dtype = DType::kBF16}});
}

predict::LaunchTables tables_of(const OpShape& s) { return even_routing(ep_desc(s)); }

}  // namespace

EpDesc ep_desc(const OpShape& s) {
  EpDesc d{.shape = {.world_size = s.world_size,
                     .m = s.m > 0 ? s.m : 64,
                     .top_k = 3,
                     .num_experts = s.m > 1000 ? 32 : 5},
           .dtype = s.dtype,
           .hidden = s.n > 0 ? s.n : 128,
           .expert_groups = s.world_size};
  if (s.test_config && s.m == 9 && s.world_size % 2 == 0) d.expert_groups = s.world_size / 2;
  return d;
}

SendConfig ep_send_config(const EpDesc& d, const OpShape& s) {
  SendConfig c = default_send_config(d, s.target);
  if (!s.test_config) return c;
  const bool odd_long = d.shape.m > 16 && d.shape.world_size % 2 == 1;
  c.num_slots = d.shape.m == kInTurnTokens || odd_long ? 2 : 1;
  if (s.target == Target::kCuda) return c;
  c.num_workers = 2;
  if (d.shape.m > 16) c.tile_tokens = 2;
  return c;
}

PlaceConfig ep_place_config(const EpDesc& d, const OpShape& s) {
  PlaceConfig c = default_place_config(d, s.target);
  if (!s.test_config || s.target == Target::kCuda) return c;
  c.tiles = {.part_tokens = std::min<std::int64_t>(c.tiles.part_tokens, 4),
             .count_tokens = c.tiles.part_tokens % 2 == 0 ? 2 : 1,
             .count_experts = 2,
             .add_counts = 7,
             .tile_slots = std::min<std::int64_t>(c.tiles.tile_slots, 8)};
  // A worker for every tile, which may come in any order.
  c.num_workers = static_cast<int>(2 * ceil_div(d.received_rows(), c.tiles.part_tokens) +
                                   ceil_div(d.received_rows() * d.shape.top_k, c.tiles.tile_slots));
  return c;
}

ReturnConfig ep_return_config(const EpDesc& d, const OpShape& s) {
  ReturnConfig c = default_return_config(d, s.target);
  if (!s.test_config) return c;
  if (s.target == Target::kCpu) c.num_workers = 2;
  if (d.shape.m == kInTurnTokens) c.num_slots = 3 - c.num_slots;
  // As long steps have it.
  if (d.shape.m == 21) {
    c.num_slots = 1;
    c.tile_tokens = 2, c.channels = 2, c.num_sum_workers = 1;
    c.sum_tokens = d.shape.world_size % 2 == 0 ? 1 : 0;
  }
  return fitted(d, c);
}

OperatorInfo ep_send_info() {
  return {.name = "ep_send",
          .summary = "m tokens of size n, stored at the ranks that have their 3 experts, once each",
          .program =
              [](const OpShape& s) { return ep_send(ep_desc(s), ep_send_config(ep_desc(s), s)); },
          .shapes = shapes,
          .large = large_step(),
          .tables = tables_of};
}

OperatorInfo ep_send_fp8_info() {
  return {
      .name = "ep_send_fp8",
      .summary = "the same in e4m3 with scales of blocks",
      .program =
          [](const OpShape& s) { return ep_send_fp8(ep_desc(s), ep_send_config(ep_desc(s), s)); },
      .shapes = [](int world_size) -> std::vector<OpShape> {
        return with_test_configs(
            {{.world_size = world_size, .m = 21, .n = 256, .dtype = DType::kF32},
             {.world_size = world_size, .m = 9, .n = 128, .dtype = DType::kBF16},
             {.world_size = world_size, .m = kInTurnTokens, .n = 128, .dtype = DType::kBF16}});
      },
      .large = large_step(),
      .tables = tables_of};
}

OperatorInfo ep_return_info() {
  return {
      .name = "ep_return",
      .summary = "weighted sums of experts' results, stored at the ranks of m tokens of size n",
      .program =
          [](const OpShape& s) { return ep_return(ep_desc(s), ep_return_config(ep_desc(s), s)); },
      .shapes = shapes,
      .large = large_step(),
      .tables = tables_of};
}

OperatorInfo ep_place_info() {
  return {.name = "ep_place",
          .summary = "rows of the own experts for m tokens that were received",
          .program =
              [](const OpShape& s) { return ep_place(ep_desc(s), ep_place_config(ep_desc(s), s)); },
          .shapes = [](int world_size) -> std::vector<OpShape> {
            return with_test_configs(
                {{.world_size = world_size, .m = 21}, {.world_size = world_size, .m = 9}});
          },
          .large = {.m = 2048},
          .tables = tables_of};
}

}  // namespace stretto
