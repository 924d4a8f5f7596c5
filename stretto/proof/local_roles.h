// Roles whose workers are alone with their tiles: agents pass each other slots of pipes, read what
// nobody writes and store to outputs. No other role, worker or rank hears of them before a launch
// ends. A matrix product is one. Where masks are left open (size_masks.h), their tiles need not be
// walked event by event: one tile, by itself, tells that a worker comes through any number of them,
// and what is left of a tile is what it reads and stores.
//
// docs/decisions/0042-workers-that-are-alone.md has the argument. What does not fit is walked.
#pragma once

#include <map>
#include <optional>

#include "stretto/ir/program.h"

namespace stretto {

// A tile's row and column in another order, in which sizes decide about less: the rows of tiles are
// taken one after the other. Every tile is there once in either order.
struct TileOrder {
  std::map<int, Expr> values;  // by variable
};

class LocalRoles {
 public:
  explicit LocalRoles(const Program& program) : program_(program) {}

  struct Local {
    bool is_local = false;
    TileOrder order;           // empty: as it is written
    // Tiles that are there at other sizes only have values for all that the role goes by.
    bool counts_open = false;
  };
  const Local& of(const Role& role);

 private:
  bool is_local(const Role& role) const;
  // Whether a worker comes through a tile that begins with all slots free, and frees them.
  bool comes_through(const Role& role) const;

  const Program& program_;
  std::map<const Role*, Local> known_;
};

}  // namespace stretto
