#include "stretto/ops/moe/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ops/moe/fused_layers.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

void check(const MoeLayerConfig& c) {
  check_same_workers("moe_layer", c.first, c.second);
  if (c.second.num_reduce_sms != 0) {
    throw UserError(
        fmt::format("moe_layer: num_reduce_sms is {}, must be 0: on those that multiply",
                    c.second.num_reduce_sms));
  }
}

}  // namespace

void check_same_workers(const char* op, const AgGroupedConfig& first,
                        const GroupedRsConfig& second) {
  auto same = [&](const char* field, std::int64_t a, std::int64_t b) {
    if (a == b) return;
    throw UserError(
        fmt::format("{}: {} is {} in the first layer and {} in the second", op, field, a, b));
  };
  same("tile.bm", first.loop.tile.bm, second.loop.tile.bm);
  same("num_compute_sms", first.loop.num_compute_sms, second.loop.num_compute_sms);
  same("num_stages", first.loop.num_stages, second.loop.num_stages);
  same("num_consumers", first.loop.num_consumers, second.loop.num_consumers);
  same("cluster_size", first.loop.cluster_size, second.loop.cluster_size);
  same("stagger", first.loop.stagger, second.loop.stagger);
  same("store_slots", first.loop.store_slots, second.loop.store_slots);
  same("load_slots", first.loop.load_slots, second.loop.load_slots);
  if (first.loop.products != second.loop.products) {
    throw UserError(fmt::format("{}: products is {} in the first layer and {} in the second", op,
                                name(first.loop.products), name(second.loop.products)));
  }
}

int multiply_both(ProgramBuilder& p, const ExpertTiles& tiles, const AgGroupedConfig& cfg,
                  AgGrouped& first, GroupedRs& second, const FirstTurns& before) {
  TensorRef between = p.buffer("between", first.desc().c_dtype, {tiles.num_rows(), first.desc().n});
  SignalRef made = p.signal("made", 1);
  std::int64_t firsts = tiles.num_tiles() * first.col_tiles();
  first.store_to(between);
  GroupedRs::Rows rows{.a = between, .made = made, .tiles = firsts};
  if (cfg.skip_dead_rows) {
    rows.filled = [&](const Index& tile) { return first.rows_to_multiply(tile); };
  }
  second.multiply_rows(rows);
  auto multiply = [&](const Index& index) {
    p.when(
        index < firsts,
        [&] {
          TilePlace at =
              place_in_raster(p, index, tiles.num_tiles(), first.col_tiles(), cfg.loop.raster);
          first.multiply(at.row, at.col);
          notify_with_last(p, {index, cfg.loop.num_compute_sms}, firsts, made[0]);
        },
        [&] { second.turn(p.let("second", max(index - firsts, 0))); });
  };
  return p.role("layer", product_sms(cfg.loop), p.range(before.num + firsts + second.num_turns()),
                [&](const Tile& t) { before.then(p, t.index, multiply); });
}

AgGroupedDesc first_layer(const MoeLayerDesc& d) {
  return {.shape = d.shape,
          .n = d.ffn,
          .k = d.hidden,
          .a_dtype = d.dtype,
          .b_dtype = d.dtype,
          .c_dtype = d.dtype,
          .swiglu = true,
          .gate = d.gate,
          .bias = d.bias_ranks > 0};
}

GroupedRsDesc second_layer(const MoeLayerDesc& d) {
  return {.shape = d.shape,
          .n = d.hidden,
          .k = d.ffn,
          .a_dtype = d.dtype,
          .b_dtype = d.dtype,
          .out_dtype = d.dtype,
          .residual = d.residual,
          .bias_ranks = d.bias_ranks};
}

ExpertTiles tiles_of(const MoeLayerDesc& d, const MoeLayerConfig& c) {
  return tiles_of(first_layer(d), c.first);
}

NamedFields fields_of(MoeLayerDesc& d) {
  NamedFields all = fields_of(d.shape);
  all =
      joined(std::move(all), {{"hidden", d.hidden},
                              {"ffn", d.ffn},
                              NamedField("dtype", d.dtype).as("{}"),
                              {"residual", d.residual},
                              NamedField("bias_ranks", d.bias_ranks, 0).as("biases by one of {}")});
  return joined(std::move(all), fields_of(d.gate));
}

std::string to_string(const MoeLayerDesc& d) { return "moe_layer " + text_of(d); }

NamedFields fields_of(MoeLayerConfig& c) {
  return joined(within("first", fields_of(c.first)), within("second", fields_of(c.second)));
}

Program moe_layer(const MoeLayerDesc& d, const MoeLayerConfig& cfg) {
  AgGroupedDesc first_desc = first_layer(d);
  GroupedRsDesc second_desc = second_layer(d);
  check(first_desc, cfg.first);
  check(second_desc, cfg.second);
  check(cfg);
  AgGroupedConfig will_run = cfg.first;
  if (d.ffn <= cfg.second.loop.tile.bk) {
    FieldFit::refusing(to_string(d))
        .only("skip_dead_rows", will_run.skip_dead_rows, false, "the second layer's k is one step");
  }
  ProgramBuilder p("moe_layer", d.shape.world_size);
  ExpertTiles tiles = tiles_of(d, cfg);
  Index m = p.extent("m", d.shape.m);
  TileTableRefs tables = declare_tile_tables(p, tiles);
  AgGrouped first(p, first_desc, cfg.first, m, tables);
  GroupedRs second(p, second_desc, cfg.second, m, tables);
  if (first.sends()) p.on_start([&] { first.announce(), second.announce(); });
  first.add_sending();
  int layer = multiply_both(p, tiles, cfg.first, first, second, first.pushes());
  std::int64_t copies = first.num_copies();
  auto beside = [&](const Tile& t) {
    if (copies == 0) return second.sum(t.index);
    if (second.num_sums() == 0) return first.copy_rows(t.index);
    p.when(
        t.index < copies, [&] { first.copy_rows(t.index); },
        [&] { second.sum(p.let("sum", max(t.index - copies, 0))); });
  };
  if (copies + second.num_sums() > 0) {
    p.role("reduce", second.sum_sms(layer), p.range(copies + second.num_sums()), beside);
  }
  if (first.sends()) p.on_end([&] { first.wait_for_all(); });
  return p.finish();
}

}  // namespace stretto
