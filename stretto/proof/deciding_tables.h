// Which tables decide what is waited for, found by following values from tables to waits.
#pragma once

#include <set>
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
  // Loops that a table ends, whose bodies pass slots of pipes, read a rank's own inputs and do
  // nothing else (trip_counts.h), and by role the pipes. They are not among what decides, above.
  std::set<const Op*> counted_loops;
  std::vector<std::set<int>> counted_pipes;
  // Of pipes whose slots are not in the graph.
  bool leaves_out(std::size_t role, int pipe) const {
    return !counted_loops.empty() && counted_pipes[role].count(pipe) > 0;
  }
};
DecidingTables deciding_tables(const Program& program);

}  // namespace stretto
