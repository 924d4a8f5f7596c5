// Replaces the words for a tile map's channels by notify and wait of explicit channels, and raises
// the program to schedule level. It stands first: every later pass, and every reader, then knows
// only counters and boxes.
//
// - producer_tile_notify: notify of f_C(tile) by 1, on the own rank (local), on f_R(tile) (p2p) or
//   on every rank (broadcast)
// - consumer_tile_wait: for every channel that the rows overlap, wait for all of its tiles
//
// Table-driven maps: what a launch adds to a counter must not depend on a table. Every tile has a
// channel of its own, and p2p notifies every rank, of which the owner waits.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError naming the line where a signal has fewer channels than the map needs.
Program resolve_tile_primitives(Program program);

}  // namespace stretto
