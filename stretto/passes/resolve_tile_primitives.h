// Replaces TileLink's tile primitives by notify, wait and copy with explicit channels, and raises
// the program to schedule level. It stands first: every later pass, and every reader, then knows
// only counters and boxes.
//
//   producer_tile_notify  notify of f_C(tile) by 1: own rank (local), f_R(tile) (p2p) or every rank
//   (broadcast) consumer_tile_wait    for every channel that the rows overlap: wait for all of its
//   tiles peer_tile_*           one channel per tile, by 1 tile_push/pull_data   copy
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError naming the line where a signal has fewer channels than the map needs.
Program resolve_tile_primitives(Program program);

}  // namespace stretto
