// Loops over the rows of a part that a table deals out (table_cells.h): iteration i has some rows,
// from row i * step + c of the part on, if the part has as many, as tiles of an expert's product
// have. Where masks are left open (size_masks.h) such a loop is taken whole, however many rows the
// part has, if all it does is to pass slots in runs (steady_runs.h), to read a rank's own inputs,
// and to store those rows.
//
// A tensor that is written so alone is seen in other coordinates: the row within its part modulo
// `step`, and the part. Whatever the table and the sizes, all that a loop stores in a dimension of
// its rows is one box there, and every row of the tensor has one place. Rows of a part that are
// alike modulo `step` share a place: they are written by one loop, each once, whenever they are
// there, or by none. What is read counts as all rows of all parts.
// docs/decisions/0074-parts-and-sizes-together.md has the argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// Lets of an agent by variable, where it has but one of each. False where it has more of one.
bool collect_lets(const Block& block, std::vector<Expr>& lets);
// With what lets say in place of their variables.
Expr with_lets(const Expr& expr, const std::vector<Expr>& lets);

// How a loop goes over the rows of parts: its body does nothing but under one condition, which is
// that the part has rows from where the iteration begins.
struct PartRows {
  int table = -1;  // a partition from 0 on, which no launch writes
  const Op* condition = nullptr;
  std::int64_t step = 0;  // rows from one iteration to the next
};
// `lets`: of the agent.
std::optional<PartRows> part_rows(const Op& loop, const std::vector<Expr>& lets,
                                  const Program& program);

// A program's loops that may be taken whole, and the tensors that they alone write.
class PartTurns {
 public:
  explicit PartTurns(const Program& program);

  // Null where the loop is none.
  const PartRows* of(const Op& loop) const;

  // Of a tensor: the table that deals out its rows, which dimension they are, modulo how many.
  struct Rows {
    int table = -1, dim = -1;
    std::int64_t step = 0, parts = 0;
  };
  std::optional<Rows> rows_of(int tensor) const { return rows_[static_cast<std::size_t>(tensor)]; }

 private:
  struct Store {
    const Op* op;
    int table;
    std::int64_t step;
  };
  void look_for_loops(const Block& block, const Agent& agent, const std::vector<Expr>& lets);
  void look_at(const Op& loop, const Agent& agent, const std::vector<Expr>& lets);
  bool fits(const Block& block, std::set<int>& moving, const PartRows& rows,
            const std::vector<Expr>& lets, std::vector<Store>& stores) const;
  bool fits(const Op& store, const std::set<int>& moving, const PartRows& rows,
            const std::vector<Expr>& lets) const;
  bool reaches_all(const Op& loop, const PartRows& rows) const;
  std::optional<Rows> dealt_out(int tensor) const;

  const Program& program_;
  std::map<const Op*, PartRows> turns_;
  std::map<const Op*, std::vector<Store>> stores_;  // by loop
  std::vector<std::optional<Rows>> rows_;           // by tensor
};

}  // namespace stretto
