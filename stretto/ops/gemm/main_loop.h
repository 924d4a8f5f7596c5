// How SMs multiply: the part of their configs that all operators with a product of tiles share, and
// the resource that a role of it asks for. A field that a program cannot have is refused by the
// operator, or by the pass that would carry it out.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

// One step of the main loop: [bm, bk] * [bn, bk]^T.
struct GemmTile {
  std::int64_t bm = 0, bn = 0, bk = 0;
  friend bool operator==(const GemmTile&, const GemmTile&) = default;
};

struct MainLoop {
  GemmTile tile;
  int num_compute_sms = 1;
  std::int64_t raster = 1;  // row tiles, at most, that share a column of tiles before moving on
  int num_stages = 0;       // slices of the main loop loaded ahead; 0: none
  int num_consumers = 1;    // agents that take tiles in turn, needs stages
  int cluster_size = 1;     // CTAs that share a tile by rows
  int stagger = 0;          // steps that a block's warpgroups end their loops apart (Resource)
  ProductOrder products = ProductOrder::kAhead;  // how warpgroups share the tensor core (Resource)
  int store_slots = 0;  // in a pipe to an agent that stores; 0: who multiplies stores
  int load_slots = 0;   // in a pipe to who multiplies, for no factor; 0: it loads itself (Resource)
  friend bool operator==(const MainLoop&, const MainLoop&) = default;
};

// The SMs of a role that runs such a loop.
Resource product_sms(const MainLoop& loop);

// In a config's text: the tile, and behind those that it has the loop's other fields, where they
// are not as in most.
NamedField tile_field(GemmTile& tile);
NamedFields with_rest(NamedFields fields, MainLoop& loop);

}  // namespace stretto
