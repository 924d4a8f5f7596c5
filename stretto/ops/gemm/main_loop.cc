#include "stretto/ops/gemm/main_loop.h"

#include <algorithm>

#include "stretto/ir/op_info.h"

namespace stretto {

Resource product_sms(const MainLoop& loop) {
  return Resource::sms(loop.num_compute_sms)
      .pipelined(loop.num_stages)
      .ping_pong(loop.num_consumers)
      .staggered(loop.stagger)
      .multiplying(loop.products)
      .with_epilogue(loop.store_slots)
      .loading_ahead(loop.load_slots)
      .clustered(loop.cluster_size);
}

NamedField tile_field(GemmTile& tile) { return {"tile", {&tile.bm, &tile.bn, &tile.bk}}; }

NamedFields with_rest(NamedFields fields, MainLoop& loop) {
  using enum ProductOrder;
  for (const NamedField& field :
       NamedFields{{"raster", loop.raster, 1},
                   {"stages", loop.num_stages, 0},
                   {"consumers", loop.num_consumers, 1},
                   {"cluster", loop.cluster_size, 1},
                   {"stagger", loop.stagger, 0},
                   {"products", loop.products, {kAhead, kAheadInTurn, kInTurn, kAwaited}, kAhead},
                   {"store_slots", loop.store_slots, 0},
                   {"load_slots", loop.load_slots, 0}}) {
    bool listed = std::any_of(fields.begin(), fields.end(),
                              [&](const NamedField& f) { return f.name() == field.name(); });
    if (!listed) fields.push_back(field);
  }
  return fields;
}

}  // namespace stretto
