// Which registers an operation reads and writes, and how many a thread has: for passes that move
// operations past each other.
#pragma once

#include <cstdint>
#include <set>

#include "stretto/ir/program.h"

namespace stretto {

// Of an operation and those inside it.
struct RegisterUses {
  std::set<int> reads, writes;
  bool touches(const RegisterUses& later) const;  // their order matters
};

void add_uses(const Op& op, RegisterUses& uses);
RegisterUses uses_of(const Op& op);

// Nothing but values: may stand anywhere between the operations it depends on.
bool is_pure(const Op& op);

bool is_await_all(const Op& op);

// Of a pipelined role's agent that multiplies, as value_plan deals tiles out: its warpgroups where
// products have as many rows as the tile, 64 to each of up to three, and what a thread of them has
// of it.
std::int64_t warpgroups_of(const Role& role, const ValueType& tile);
std::int64_t registers_of(const Role& role, const ValueType& tile);
Op await(std::int64_t keep, const SourceLoc& loc);

}  // namespace stretto
