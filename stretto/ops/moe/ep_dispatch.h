// Tokens to the ranks that have their experts, each token once per rank: from routing (route.h) to
// the rows that grouped products read (grouped_gemm.h, by the tables of place.h). What comes back
// goes through ep_combine.h. Nothing depends on how many tokens go where: every source has a block
// of rows at every rank that holds all its tokens, so that no routing overflows.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/harness/op_case.h"
#include "stretto/ops/moe/expert_split.h"

namespace stretto {

struct EpDesc {
  DType dtype = DType::kF32;  // of tokens
  std::int64_t m = 1;         // most tokens of all ranks; each launch has 0 <= m <= this
  std::int64_t hidden = 1;
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;  // experts of a token
  int world_size = 1;
  int expert_groups = 1;  // expert_split.h

  // Most tokens of a rank: S. A launch of m tokens has ceil(m / P) on each, fewer on the last ones.
  std::int64_t rows_per_rank() const { return ceil_div(m, std::int64_t{world_size}); }
  std::int64_t received_rows() const { return rows_per_rank() * world_size; }
};

ExpertSplit split_of(const EpDesc& desc);
std::string to_string(const EpDesc& desc);

struct DispatchConfig {
  std::int64_t tile_rows = 16;   // rows fetched at a time
  std::int64_t count_rows = 64;  // tokens counted at a time
  std::int64_t tile_slots = 64;  // places of a rank's list whose token is looked up at a time
  int num_workers = 1;           // that make lists
  int num_fetch_workers = 1;
  int fetch_threads = 0;  // of a fetching worker's GPU block; 0: by the resource
};

DispatchConfig default_dispatch_config(const EpDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs, of the own tokens: x [ceil(m / P), hidden] symmetric; experts [ceil(m / P),
// top_k] i32 in 0..num_experts-1; weights [ceil(m / P), top_k] f32, symmetric. Outputs
//   recv [P * S, hidden]         block s: the tokens of rank s with an expert here, in order; then
//   0 recv_experts [P * S, top_k] i32   their experts, those of other ranks too; -1 past the tokens
//   recv_weights [P * S, top_k] f32   and weights; 0 past the tokens
//   counts [P, 1] i32            tokens that came from each rank
//   positions [S, P] i32         the own tokens' rows in this rank's block at each rank, or -1
// Every rank fetches what its tables name: lists of tokens for each rank are made first, and
// whoever fetches waits for the list of one source only. UserError naming the field of a bad desc
// or config; at a launch, the table and entry that break their contract.
Program ep_dispatch(const EpDesc& desc, const DispatchConfig& config);

// m: tokens of all ranks with three of 5 experts each, n: hidden size.
OperatorInfo ep_dispatch_info();

}  // namespace stretto
