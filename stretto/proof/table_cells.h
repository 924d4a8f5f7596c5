// Tensors whose rows a table deals out: entries i and i + 1 of a partition bound part i of the
// rows, entry i of a permutation names block i. Which row lies in which
// part is left open, so that one expansion stands for every table that keeps the contract.
//
// Such a tensor is seen in other coordinates: its rows' dimension holds the row within the part,
// and one dimension more the part. Every row lies in exactly one part, whatever the table says, so
// each element has one place in these coordinates, and a box that a program addresses through the
// table ("part i, from its row o on") is the same box for all tables. What holds for all places
// holds for the elements. Boxes addressed otherwise span all parts: whole tensors are exact,
// anything else counts as more than it is where it is read, and covers nothing where it is written.
//
// Entries may leave blocks out, where they can be negative or are fewer than what they may name:
// one part more has all that no entry names. They may name
// a block by two dimensions, slot / by and slot % by, as rows of pages do; the second is then of
// one element, since the part says it all.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

struct TableCells {
  int table = -1;
  int dim = -1;             // of the tensor: the rows that are dealt out
  std::int64_t count = 0;   // parts
  std::int64_t height = 0;  // most rows a part may have
  std::int64_t rows = 0;    // of the tensor
  std::int64_t block = 0;   // permutations: rows per block; partitions: 0
  bool leaves_out = false;  // permutations: the last part is what no entry names
  int digit_dim = -1;       // of the tensor: slot % by, where `dim` is slot / by; -1: none
  std::int64_t by = 1;      // elements of digit_dim
  bool is_partition() const { return block == 0; }
  // Whether the table decides where in this dimension a region lies.
  bool deals(int d) const { return d == dim || (digit_dim >= 0 && d == digit_dim); }
};

// Per tensor, at these extents; none where no table, or more than one, deals out its rows, or where
// the table does not reach all of them. The table is an input, so it stays as it is for a launch,
// and its bounds are the same on all ranks. DependsOnTable where that is so at some extents only.
std::vector<std::optional<TableCells>> table_cells(const Program& program,
                                                   const std::vector<std::int64_t>& extents);

}  // namespace stretto
