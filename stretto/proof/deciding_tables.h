// Which tables decide what is waited for, found by following values from tables to waits.
#pragma once

#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

struct DecidingTables {
  // Some table reaches the channel or threshold of a wait, or the condition or bounds around one or
  // around the slots of a pipe.
  bool any = false;
  // Per tensor: such a table, whose entries are each any value of a range. Tables that a launch may
  // change and tables whose entries hang together (ascending, partition) are not among them, nor
  // those that reach no more than conditions, which go by their text.
  std::vector<bool> by_entry;
};
DecidingTables deciding_tables(const Program& program);

}  // namespace stretto
