#include "stretto/ops/moe/ep_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/placing.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const PlaceConfig& c) {
  check_sizes("ep_place", {{"m", d.m},
                           {"num_experts", d.num_experts},
                           {"top_k", d.top_k},
                           {"world_size", d.world_size},
                           {"count_rows", c.count_rows},
                           {"tile_slots", c.tile_slots},
                           {"num_workers", c.num_workers}});
  check_split("ep_place", split_of(d));
  if (d.received_rows() > kMostRows / d.top_k) {
    throw UserError(fmt::format("ep_place: m is {} with {} experts each, at most {} rows", d.m,
                                d.top_k, kMostRows));
  }
}

}  // namespace

PlaceConfig default_place_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.received_rows();
  if (target == Target::kCpu) {
    return {.count_rows = std::min<std::int64_t>(64, rows),
            .tile_slots = std::min<std::int64_t>(64, rows * d.top_k)};
  }
  PlacingTiles tiles = gpu_placing_tiles(rows, split_of(d).share());
  PlaceConfig c{.count_rows = tiles.count_rows, .tile_slots = tiles.tile_slots};
  c.num_workers = gpu_workers(ceil_div(rows * d.top_k, c.tile_slots));
  return c;
}

Program ep_place(const EpDesc& d, const PlaceConfig& cfg) {
  check(d, cfg);
  ExpertSplit split = split_of(d);
  std::int64_t rows = d.received_rows(), own = split.share();
  ProgramBuilder p("ep_place", d.world_size);
  TensorRef experts =
      p.table("recv_experts", {rows, d.top_k}, {ContractKind::kRange, -1, d.num_experts});
  auto own_number = [&](const Index& first, const Index& j) {
    Value expert = p.load(experts.tile({first, j}, cfg.count_rows, 1));
    Value begin = p.splat(DType::kI32, split.first(p.rank()));
    Value exists = p.iota_rows(first, cfg.count_rows) < p.splat(DType::kI32, rows);
    return where(exists, expert - begin, p.splat(DType::kI32, -1));
  };
  auto chosen = [&](const Index& first) {
    Value mask = p.zeros(DType::kF32, cfg.count_rows, own);
    p.loop(d.top_k, [&](const Index& j) {
      Value here = p.iota_cols(0, own) == own_number(first, j);
      mask = where(here, p.full(DType::kF32, 1, 1, 1), mask);
    });
    return mask;
  };
  TensorRef offsets = p.output("offsets", DType::kI32, {own + 2});
  Placing placing(p, {.tokens = rows,
                      .most_tokens = rows,
                      .top_k = d.top_k,
                      .num_experts = own,
                      .count_rows = cfg.count_rows,
                      .tile_slots = cfg.tile_slots,
                      .some_elsewhere = true,
                      .chosen = chosen,
                      .expert = own_number,
                      .slots = p.output("slots", DType::kI32, {rows, d.top_k}),
                      .offsets = offsets,
                      .row_tokens = p.output("tokens", DType::kI32, {rows * d.top_k, 1})});
  p.role("place", Resource::sms(cfg.num_workers), placing.tiles(), [&](const Tile& t) {
    placing.place(t, [] {});
    p.when(t.index == 0, [&] {
      Value end = p.full(DType::kI32, 1, 1, static_cast<double>(rows * d.top_k));
      p.store(offsets.tile({own + 1}, 1, 1), end);
    });
  });
  return p.finish();
}

}  // namespace stretto
