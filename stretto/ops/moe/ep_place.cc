#include "stretto/ops/moe/ep_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const PlaceConfig& c) {
  check_sizes("ep_place", {{"m", d.shape.m},
                           {"num_experts", d.shape.num_experts},
                           {"top_k", d.shape.top_k},
                           {"world_size", d.shape.world_size},
                           {"num_workers", c.num_workers}});
  check_placing_tiles("ep_place", c.tiles);
  check_split("ep_place", split_of(d));
  if (d.received_rows() > kMostRows / d.shape.top_k) {
    throw UserError(fmt::format("ep_place: m is {} with {} experts each, at most {} rows",
                                d.shape.m, d.shape.top_k, kMostRows));
  }
}

}  // namespace

Program ep_place(const EpDesc& d, const PlaceConfig& cfg) {
  check(d, cfg);
  ExpertSplit split = split_of(d);
  std::int64_t rows = d.received_rows(), own = split.share();
  ProgramBuilder p("ep_place", d.shape.world_size);
  TensorRef experts = p.table("recv_experts", {rows, d.shape.top_k},
                              {ContractKind::kRange, -1, d.shape.num_experts});
  TensorRef offsets = p.output("offsets", DType::kI32, {own + 2});
  Placing placing(p, {.tokens = rows,
                      .most_tokens = rows,
                      .top_k = d.shape.top_k,
                      .num_experts = own,
                      .tiles = cfg.tiles,
                      .some_elsewhere = true,
                      .first_expert = split.first(p.rank()),
                      .experts = experts,
                      .slots = p.output("slots", DType::kI32, {rows, d.shape.top_k}),
                      .offsets = offsets,
                      .row_tokens = p.output("tokens", DType::kI32, {rows * d.shape.top_k, 1})});
  const std::int64_t blocks = placing.num_blocks();
  TileSpace tiles = p.range(blocks + placing.num_tiles());
  p.role("place", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    p.when(t.index < blocks, [&] { placing.count(t.index, [](const Index&) {}); });
    p.when(t.index >= blocks, [&] { placing.place(t.index - blocks); });
    p.when(t.index == 0, [&] {
      Value end = p.full(DType::kI32, 1, 1, static_cast<double>(rows * d.shape.top_k));
      p.store(offsets.tile({own + 1}, 1, 1), end);
    });
  });
  return p.finish();
}

NamedFields fields_of(PlaceConfig& c) {
  return joined({{"workers", c.num_workers}}, fields_of(c.tiles));
}

}  // namespace stretto
