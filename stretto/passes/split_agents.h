// Splits the one sequential body of an SM role into two agents: a producer, which waits and loads
// ahead, and a consumer, which computes, stores and notifies. Each load inside a loop that feeds a
// dot becomes a pipe of Resource::num_stages slots, one outside of loops a pipe of two; loads
// of a tensor in several loops share a pipe. Rows that an index picks are put by the producer,
// which loads or computes the index; so is, where Resource::load_slots asks for it, every other
// matrix that is loaded: its put stands behind those of the tile's factors, and is under way while
// they are being multiplied. Vectors that are loaded beside factors, such as scales, have pipes,
// too, and are got where they are read. In a role without dots the rows that its loops load go
// through pipes. The dots that read the slots become asynchronous, and where nothing else touches
// their accumulator one iteration of them stays in flight. Roles that ask for no stages stay as
// they are.
//
// It stands after resolve_tile_primitives, since a tile primitive is several waits and loops of
// which each agent needs a part, and before everything that looks at agents one by one.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError for a role that cannot be split without changing the order of its own writes and reads,
// or that has nothing to load through the pipes that it asks for (refuse.h). What it writes, hands
// on by a signal and waits for before it reads is in order. The producer makes the waits after
// which a tile loads something.
Program split_agents(Program program);

}  // namespace stretto
