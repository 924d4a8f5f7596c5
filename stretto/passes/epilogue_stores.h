// Has an agent of its own store what a pipelined role computes: the consumer puts its tile into
// slots of a pipe, columns by columns, and goes on with the next tile; the epilogue warp stores
// each slot when it is full, and does the notifies that publish it. Resource::store_slots asks for
// it.
//
// It stands last: what a tile does has its final form, and only the consumer's part of it matters.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

// UserError where stores are limited to some columns, or where order between stores and anything
// else of the consumer would be lost (refuse.h).
Program epilogue_stores(Program program);

}  // namespace stretto
