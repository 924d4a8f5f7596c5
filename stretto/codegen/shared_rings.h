// Pipes that share their slots (Pipe::shares) are one ring of slots. Its consumers take turns, tile
// by tile, in the order in which the producer fills them: the parity of a barrier tells two rounds
// of a slot apart and no more, so each begins once the one before has got its last slot, and learns
// from it where it stands.
#pragma once

#include <optional>

#include "stretto/ir/program.h"

namespace stretto {

struct RingTurn {
  int turn = 0, num_turns = 0;
  friend bool operator==(const RingTurn&, const RingTurn&) = default;
};

// Of the consumer of a pipe that shares slots. Nothing where the producer does not fill one of the
// ring's pipes after the other in every tile.
std::optional<RingTurn> ring_turn(const Role& role, int pipe);

// Whether the op, or one within it, gets from the pipe.
bool gets_from(const Op& op, int pipe);

}  // namespace stretto
