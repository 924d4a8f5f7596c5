// The part that gemm_rs and the two-shot gemm_ar have in common: every rank multiplies its a and b
// in blocks of rows, own rows last, each block's partial sums travel to the rank that owns its
// rows, and the owner sums what all ranks sent. What becomes of the sums is up to the operator.
#pragma once

#include <cstdint>
#include <optional>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto {

class PartialSums {
 public:
  // Declares extent m, the inputs a and b, and the slots.
  PartialSums(ProgramBuilder& p, const GemmRsDesc& desc, const GemmRsConfig& config);

  // To be called in on_start.
  void announce() const;
  // Declares the role "gemm" and, with copy engines, "scatter".
  void multiply_and_send();

  // Tile space of a role that sums: the tiles of a run of rows at the largest m. A tile's rows are
  // counted from the rank's first one.
  TileSpace own_tiles() const;
  // Waits for all ranks' partial sums of a tile: fp32 [bm, bn], zero in rows past own_rows().
  Value sum(const Tile& t) const;

  const Index& m() const { return m_; }
  const Index& run_rows() const { return runs_.run_rows(); }  // ceil(m / P)
  Index own_first_row() const { return runs_.first_row(p_.rank()); }
  Index own_rows() const { return runs_.num_rows(p_.rank()); }  // 0..run_rows()

 private:
  void store_at_owner();
  void store_here_and_copy();
  // A block of some rank's rows; local_row may lie at or past local_end, then it is empty.
  struct Block {
    Index owner, idx;            // idx within the owner's run
    Index local_row, local_end;  // counted from the owner's first row
    Index row_end;               // the same end, counted in m
  };
  Block block_of(const Tile& t) const;
  Value product(const Block& block, const Index& col) const;
  void wait_for_slot(const Index& owner) const;
  std::int64_t tiles_per_block() const;

  ProgramBuilder& p_;
  GemmRsDesc d_;
  GemmRsConfig cfg_;
  Index m_;
  RowRuns runs_;
  TensorRef a_;
  std::optional<Linear> linear_;
  TensorRef slots_;
  SignalRef arrived_;
  SignalRef ready_;  // with a single slot
};

}  // namespace stretto
