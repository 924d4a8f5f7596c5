// Several workers to a tile of a product, each with some steps of k: for products with fewer tiles
// than SMs. All but one store their sums; that one adds them, in the order of k, so that every
// launch gives the same bits, and goes on with the tile.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct KPartsDesc {
  std::int64_t m = 0, n = 0, k = 0;  // m: the bound of the program's extent
  GemmTile tile;
  int parts = 1;
  std::int64_t raster = 1;       // as in MainLoop
  DType sum = DType::kF32;       // of what Linear sums
  std::int64_t num_weights = 1;  // sums of a tile
  bool swap_ab = false;          // as in LinearDesc
};

// UserError where k has fewer steps than parts.
void check_k_parts(const std::string& op, std::int64_t k, const GemmTile& tile, int parts);

class KParts {
 public:
  // Where a tile of the product lies, and which of its steps a worker takes.
  struct Part {
    Index idx, row, col;
    Index channel;  // of the tile, from 0 to their number
    StepRange steps;
  };

  // Declares the buffer of sums and their signal. `m`: the program's extent.
  KParts(ProgramBuilder& p, const KPartsDesc& desc, const Index& m);

  // Rows are those of the bound, in a launch or not: each launch notifies every channel.
  TileSpace tiles() const;
  // The one that adds the others has the first steps and comes last, so that it waits for parts
  // that were taken before it.
  Part part_of(const Tile& t) const;
  // `finish` runs where the sums are those of all parts.
  void add_up(const Part& part, Linear::Sums& sums, const std::function<void()>& finish) const;

 private:
  std::int64_t row_tiles() const { return ceil_div(d_.m, d_.tile.bm); }
  std::int64_t col_tiles() const { return ceil_div(d_.n, d_.tile.bn); }

  ProgramBuilder& p_;
  KPartsDesc d_;
  TensorRef sums_;
  SignalRef summed_;  // by tile
};

}  // namespace stretto
