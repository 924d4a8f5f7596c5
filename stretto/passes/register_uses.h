// Which registers an operation reads and writes: for passes that move operations past each other.
#pragma once

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
Op await(std::int64_t keep, const SourceLoc& loc);

}  // namespace stretto
