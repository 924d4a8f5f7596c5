// Gives a pipelined role several consumers that take a worker's tiles in turn, in the order that it
// had, through pipes that share their slots. The producer fills one after the other, so that one
// consumer stores its result while the next multiplies (the ping-pong schedule of CUTLASS's
// warp-specialised kernels).
//
// It stands last: what a tile does has its final form.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError for a role with several consumers that was not split (refuse.h).
Program take_turns(Program program);

}  // namespace stretto
