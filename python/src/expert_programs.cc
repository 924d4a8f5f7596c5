#include "expert_programs.h"

#include "chosen.h"
#include "fields.h"
#include "stretto/base/errors.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/choose/fastest.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_moe_layer.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// `private_results`: what comes is no memory that peers reach.
template <Program (*program)(const EpDesc&, const SendConfig&)>
Program sending(int sms, nb::kwargs given) {
  Fields fields("ep_send", std::move(given));
  auto d = fields.desc<EpDesc>();
  bool private_results = false;
  fields.take({{"private_results", private_results}});
  fields.finish();
  return program(d, default_send_config(d, target(sms), private_results));
}

// Buffers of `parts` that ep_return has itself; with one it is the caller's.
int ep_return_slots(int sms, nb::kwargs given) {
  Fields fields("ep_return", std::move(given));
  auto d = fields.desc<EpDesc>();
  fields.finish();
  return default_return_config(d, target(sms)).num_slots;
}

// Rows of the state `products`.
std::int64_t ep_moe_rows(int sms, nb::kwargs given) {
  Fields fields("ep_moe_rows", std::move(given));
  auto d = fields.desc<EpMoeLayerDesc>();
  fields.finish();
  return tiles_of(d, default_config(d, target(sms))).num_rows();
}

// Rows of a tile of both layers, and how many tiles there can be.
nb::tuple expert_tiles(int sms, nb::kwargs given) {
  Fields fields("expert_tiles", std::move(given));
  auto d = fields.desc<AgGroupedDesc>();
  fields.finish();
  ExpertTiles tiles = tiles_of(d, default_config(d, target(sms)));
  return nb::make_tuple(tiles.tile_rows, tiles.num_tiles());
}

Program tables_of_experts(int sms, nb::kwargs given) {
  Fields fields("expert_tables", std::move(given));
  ExpertTablesDesc d{.tiles = fields.desc<ExpertTiles>(), .order = {}};
  LayerSizes sizes;  // where they are known
  fields.take({{"ffn", sizes.ffn}, {"hidden", sizes.hidden}});
  fields.finish();
  d.order = default_order(d.tiles, target(sms), sizes);
  return expert_tables(d, default_config(d, target(sms)));
}

// As `products` say: on GPUs in the config that is predicted to be the fastest of those with tiles
// of so many rows, or in the default, which is what one rank has and what nothing is predicted for.
template <typename Desc, typename Config>
Program chosen_layer(const Desc& d, const Config& base, Program (*make)(const Desc&, const Config&),
                     Products products, Target target) {
  bool chooses =
      target == Target::kCuda && products != Products::kDefault && d.shape.world_size > 1;
  if (!chooses) return make(d, base);
  try {
    return fastest_program(d, base, calibrated_machine(d.shape.world_size, target.gpu()));
  } catch (const UserError&) {  // the default says what is wrong, if anything
    return make(d, base);
  }
}

Program first_layer_program(int sms, nb::kwargs given) {
  Fields fields("ag_grouped_gemm", std::move(given));
  auto d = fields.desc<AgGroupedDesc>();
  AgGroupedConfig config = default_config(d, target(sms));
  fields.take({{"tile_rows", config.loop.tile.bm}});
  Products products = take_products(fields);
  return chosen_layer(d, config, ag_grouped_gemm, products, target(sms));
}

Program second_layer_program(int sms, nb::kwargs given) {
  Fields fields("grouped_gemm_rs", std::move(given));
  auto d = fields.desc<GroupedRsDesc>();
  GroupedRsConfig config = default_config(d, target(sms));
  fields.take({{"tile_rows", config.loop.tile.bm}});
  Products products = take_products(fields);
  return chosen_layer(d, config, grouped_gemm_rs, products, target(sms));
}

Program both_layers_program(int sms, nb::kwargs given) {
  Fields fields("moe_layer", std::move(given));
  auto d = fields.desc<MoeLayerDesc>();
  MoeLayerConfig config = default_config(d, target(sms));
  fields.take({{"tile_rows", config.first.loop.tile.bm}});
  Products products = take_products(fields);
  config.second.loop.tile.bm = config.first.loop.tile.bm;
  return chosen_layer(d, config, moe_layer, products, target(sms));
}

}  // namespace

void bind_experts(nb::module_& m) {
  // Of one rank by itself.
  bind_operator(m, "moe_route", moe_route, default_config);
  bind_operator(m, "grouped_gemm", grouped_gemm, default_config);
  // Every expert split over the ranks.
  bind_operator(m, "moe_combine", moe_combine, default_config);
  m.def("expert_tiles", expert_tiles);
  m.def("expert_tables", tables_of_experts);
  m.def("ag_grouped_gemm", first_layer_program);
  m.def("grouped_gemm_rs", second_layer_program);
  m.def("moe_layer", both_layers_program);
  // Whole experts spread over the ranks.
  m.def("ep_send", sending<ep_send>);
  m.def("ep_send_fp8", sending<ep_send_fp8>);
  bind_operator(m, "ep_place", ep_place, default_place_config);
  bind_operator(m, "ep_return", ep_return, default_return_config);
  bind_operator(m, "ep_moe_layer", ep_moe_layer, default_config);
  m.def("ep_return_slots", ep_return_slots);
  m.def("ep_moe_rows", ep_moe_rows);
}

}  // namespace stretto::python
