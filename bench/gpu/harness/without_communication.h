// What a program would take if nothing had to be sent: the same work at the same time on the same
// ranks, with all data in place. The difference is what its communication costs, with what comes of
// it: the gate before the kernel, the end that awaits all, registers of a producer that waits.
#pragma once

#include "stretto/ir/program.h"

namespace stretto::bench {

// `program`, of tile level, without its roles on copy engines, its notifies and its waits, those
// within a rank included. Buffers that those roles write become state: the caller's to fill, since
// nobody else does. What SMs read or write on other ranks stays. Not to be proved, nor its results
// to be used where they depend on an order: nothing waits any more. UserError where packets are
// awaited, which only a launch of the whole program sends.
Program without_communication(Program program);

}  // namespace stretto::bench
