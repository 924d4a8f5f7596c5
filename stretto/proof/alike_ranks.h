// Programs whose ranks are alone with what they do, and do the same: the proof of one rank is that
// of each. Asked by prove.cc before all ranks are walked.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// Whether no rank touches what another has (tensors, packets, counters), waits for one, or has
// anything that others could reach, and whether no expression has another value on another rank:
// each that names the rank folds to the same with each rank's number in its place. False where that
// is not seen. False of one rank, too.
bool ranks_are_alike(const Program& program);

// Rank 0 of such a program by itself, in a world of one.
Program one_of_alike(const Program& program);

}  // namespace stretto
