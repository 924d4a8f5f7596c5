// How the rows of a matrix are shared out over the ranks: in runs of ceil(m / P), of which the last
// ones may be short or empty, each run cut into blocks, and the blocks of a run grouped into
// channels. Numbers of blocks and channels follow from the largest m, so that the notifies of a
// launch do not depend on its m; rows follow from the launch's m.
#pragma once

#include <cstdint>

#include "stretto/lang/program_builder.h"

namespace stretto {

struct RowRunsOptions {
  std::int64_t m_bound = 1;  // largest m
  int world_size = 1;
  std::int64_t block_rows = 1;
  std::int64_t channels = 1;  // per run, at most; fewer where there are fewer blocks
  bool whole_blocks = false;  // runs are multiples of block_rows, so that no block reaches the next
  bool all_rows = false;      // every rank has a run of all m rows, its part of their columns
};

class RowRuns {
 public:
  RowRuns(const Index& m, const RowRunsOptions& options);

  std::int64_t num_blocks() const { return num_blocks_; }      // per run
  std::int64_t num_channels() const { return num_channels_; }  // per run
  std::int64_t rows_per_channel() const { return blocks_per_channel_ * block_rows_; }

  std::int64_t block_rows() const { return block_rows_; }
  // Rows of one run: ceil(m / P), in whole blocks if asked for. What a rank does not have of them
  // is padding.
  const Index& run_rows() const { return run_rows_; }
  Index first_row(const Index& owner) const { return owner * run_rows_; }
  // Rows that `owner` has of m, 0..run_rows().
  Index num_rows(const Index& owner) const;
  Index channel_of(const Index& block) const { return block / blocks_per_channel_; }
  // Blocks that a channel counts, empty ones included.
  Index blocks_in(const Index& channel) const;

 private:
  Index m_, run_rows_;
  bool all_rows_;
  std::int64_t block_rows_, num_blocks_, blocks_per_channel_, num_channels_;
};

std::int64_t num_blocks(const RowRunsOptions& options);  // in a run
// The channels that `blocks` have where so many are asked for: no more than blocks, each but the
// last of as many.
std::int64_t possible_channels(std::int64_t blocks, std::int64_t channels);
inline std::int64_t possible_channels(const RowRunsOptions& run) {
  return possible_channels(num_blocks(run), run.channels);
}

// Rows of `cols` elements, in whole blocks, that one copy moves at most (ir/limits.h). 0 where a
// block is too large.
std::int64_t most_copied_rows(std::int64_t block_rows, std::int64_t cols);
// Channels that a run of run_rows rows needs at least if each is moved by one copy; 0 where a block
// is too large.
std::int64_t least_channels(std::int64_t run_rows, std::int64_t block_rows, std::int64_t cols);

}  // namespace stretto
