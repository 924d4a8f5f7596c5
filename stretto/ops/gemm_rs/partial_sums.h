// The part that gemm_rs and the two-shot gemm_ar have in common: every rank multiplies its a and b
// in blocks of rows, own rows last, each block's partial sums travel to the rank that owns its
// rows, and the owner sums what all ranks sent: in a role of its own, or while it multiplies its
// own rows, whose products then never leave the registers. What becomes of the sums is up to the
// operator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm/row_runs.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto {

class PartialSums {
 public:
  // Declares extent m, the inputs a and b with their scales, and the slots. `whole_blocks`: ranks
  // own whole blocks of rows, so that no tile of one reaches into the next one's (RowRunsOptions).
  PartialSums(ProgramBuilder& p, const GemmRsDesc& desc, const GemmRsConfig& config,
              bool whole_blocks = false);

  // To be called in on_start.
  void announce() const;

  // Columns of a tile of this rank's rows, which are counted from its first one. Rows at or past
  // own_rows() do not exist; the tile may lie there altogether.
  struct OwnTile {
    Index row, col;
    Index block;  // of the own run
    std::int64_t cols = 0;
  };
  using Finish = std::function<void(const OwnTile& t, const Value& sum)>;
  using Done = std::function<void(const OwnTile& t)>;
  // Declares the roles: "gemm", with copy engines "scatter", and with SMs that sum "reduce".
  // `finish` says what happens to the sum of all ranks, fp32 [bm, t.cols]: zero in rows from
  // own_rows() to run_rows(), of no meaning behind them. It runs for the columns of each of
  // num_own_tiles() tiles, all at once or in parts, and after those of a tile `done` once.
  void run(
      const Finish& finish, const Done& done = [](const OwnTile&) {});
  // Of a run of rows at the largest m.
  std::int64_t num_own_tiles() const { return runs_.num_blocks() * tiles_per_block(); }
  // Of a channel of a run.
  Index tiles_in(const Index& channel) const {
    return runs_.blocks_in(channel) * tiles_per_block();
  }
  const RowRuns& runs() const { return runs_; }

  const Index& m() const { return m_; }
  const Index& run_rows() const { return runs_.run_rows(); }  // ceil(m / P), or whole blocks
  Index own_first_row() const { return runs_.first_row(p_.rank()); }
  Index own_rows() const { return runs_.num_rows(p_.rank()); }  // 0..run_rows()

 private:
  // A block of some rank's rows; local_row may lie at or past local_end, then it is empty.
  struct Block {
    Index owner, idx;              // idx within the owner's run
    Index local_row, local_end;    // counted from the owner's first row
    std::optional<Index> row_end;  // the same end, counted in m, where it limits what is loaded
  };
  void multiply(const Finish& finish, const Done& done);
  void send_by_copy_engine();
  void reduce(const Finish& finish, const Done& done);
  // Of all ranks' parts of the tile, `own` this rank's.
  Value sum_in_rank_order(const Value& own, const OwnTile& t) const;
  void wait_for(const Index& source, const OwnTile& t) const;
  void add_arrived(Value& sum, const Index& source, const OwnTile& t) const;
  Block block_of(const Tile& t) const;
  std::vector<Value> products(const Block& block, const Index& col) const;
  std::int64_t num_parts() const;
  // Of what is added and stored together: a part, or of one that is loaded ahead 128 bytes.
  std::int64_t cols_of_sum() const;
  std::int64_t cols_of_part() const { return cfg_.loop.tile.bn / num_parts(); }
  void wait_for_slot(const Index& owner) const;
  std::int64_t tiles_per_block() const { return ceil_div(d_.n, cfg_.loop.tile.bn); }
  bool by_copy_engine() const { return cfg_.scatter == Scatter::kCopyEngine; }
  bool sums_in_epilogue() const { return cfg_.num_reduce_sms == 0; }
  bool loads_ahead() const { return sums_in_epilogue() && cfg_.loop.load_slots > 0; }

  ProgramBuilder& p_;
  GemmRsDesc d_;
  GemmRsConfig cfg_;
  Index m_;
  RowRuns runs_;
  TensorRef a_, scale_a_;
  std::optional<Linear> linear_;
  TensorRef slots_;
  SignalRef arrived_;
  SignalRef ready_;  // with a single slot
  // Of the copy engine: what is to be sent, by owner and channel how many of its tiles are there.
  TensorRef partial_;
  SignalRef computed_;
};

}  // namespace stretto
