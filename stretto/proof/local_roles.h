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
#include <set>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/proof/open_loops.h"

namespace stretto {

// A tile's row and column in another order, in which sizes decide about less: the rows of tiles are
// taken one after the other. Every tile is there once in either order.
struct TileOrder {
  std::map<int, Expr> values;  // by variable
};

class LocalRoles {
 public:
  // `loops`: which know those that sizes end; without them a role that has any is not alone.
  explicit LocalRoles(const Program& program, OpenLoops* loops = nullptr)
      : program_(program), loops_(loops) {}

  // What the role's agents do with one tile. Where consumers take turns (passes/take_turns.h) there
  // is one for each of them: a worker's tiles go to them one after the other.
  struct Turn {
    std::vector<const Block*> bodies;  // by agent; null: it has no part in it
    Expr tile;                         // which tile it is, of the role's tile number
  };
  struct Local {
    bool is_local = false;
    std::vector<Turn> turns;
    Expr num_tiles;   // of all turns
    TileOrder order;  // empty: as it is written
    // Tiles that are there at other sizes only have values for all that the role goes by.
    bool counts_open = false;
  };
  const Local& of(const Role& role);

 private:
  // What a tile does with slots and products is the same in every tile, on every rank.
  bool is_steady_tile(const Block& block) const;
  bool is_local(const Role& role, const std::vector<Turn>& turns) const;
  // Whether a worker comes through such a tile that begins with all slots free, and frees them.
  bool comes_through(const Role& role, const Turn& turn) const;

  const Program& program_;
  OpenLoops* loops_;
  std::map<const Role*, Local> known_;
};

}  // namespace stretto
