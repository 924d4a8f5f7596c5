#include "stretto/ops/gemm/row_runs.h"

#include <algorithm>

#include "stretto/ir/limits.h"

namespace stretto {

RowRuns::RowRuns(const Index& m, const RowRunsOptions& o)
    : m_(m),
      run_rows_(o.all_rows ? m : ceil_div(m, Index(o.world_size))),
      all_rows_(o.all_rows),
      block_rows_(o.block_rows),
      num_blocks_(stretto::num_blocks(o)),
      blocks_per_channel_(ceil_div(num_blocks_, o.channels)),
      num_channels_(ceil_div(num_blocks_, blocks_per_channel_)) {
  if (o.whole_blocks) run_rows_ = ceil_div(run_rows_, Index(block_rows_)) * block_rows_;
}

Index RowRuns::num_rows(const Index& owner) const {
  if (all_rows_) return m_;
  return max(min(m_ - first_row(owner), run_rows_), 0);
}

Index RowRuns::blocks_in(const Index& channel) const {
  return min(Index(blocks_per_channel_), Index(num_blocks_) - channel * blocks_per_channel_);
}

std::int64_t num_blocks(const RowRunsOptions& o) {
  std::int64_t run = o.all_rows ? o.m_bound : ceil_div(o.m_bound, std::int64_t{o.world_size});
  return ceil_div(run, o.block_rows);
}

std::int64_t possible_channels(std::int64_t blocks, std::int64_t channels) {
  blocks = std::max<std::int64_t>(blocks, 1);
  return ceil_div(blocks, ceil_div(blocks, channels));
}

std::int64_t most_copied_rows(std::int64_t block_rows, std::int64_t cols) {
  return kMaxTileElements / cols / block_rows * block_rows;
}

std::int64_t least_channels(std::int64_t run_rows, std::int64_t block_rows, std::int64_t cols) {
  std::int64_t most = most_copied_rows(block_rows, cols);
  return most == 0 ? 0 : ceil_div(ceil_div(run_rows, block_rows) * block_rows, most);
}

}  // namespace stretto
