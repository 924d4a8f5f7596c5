// c = f([a of rank 0 | a of rank 1 | ...] * b^T): a linear layer whose rows every rank holds with a
// part of their columns. Each rank multiplies its own columns where they are, then adds the product
// of the next rank's, and so on, as soon as their rows have arrived.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/ag_gemm/gather.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct AgColumnsDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows; each launch has 0 <= m <= this
  std::int64_t n = 0;  // columns on this rank
  std::int64_t k = 0;  // all ranks' columns, P times one's
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool bias = false;
  Scaling scaling = Scaling::kNone;  // for fp8 factors; kBlock: k/P in whole blocks
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  friend bool operator==(const AgColumnsDesc&, const AgColumnsDesc&) = default;
};

struct AgColumnsConfig {
  MainLoop loop;
  Gather gather = Gather::kSend;  // or kPush
  int num_gather_workers = 1;     // copy queues (kSend) or SMs (kPush)
  std::int64_t comm_rows = 0;     // rows of one transfer
  std::int64_t comm_group = 1;    // transfers to a peer before the next peer's
  friend bool operator==(const AgColumnsConfig&, const AgColumnsConfig&) = default;
};

NamedFields fields_of(AgColumnsDesc& desc);
std::string to_string(const AgColumnsDesc& desc);
NamedFields fields_of(AgColumnsConfig& config);
AgColumnsConfig default_config(const AgColumnsDesc& desc, Target target, Gather gather);
// The same with tiles in groups: the rows that the SMs multiply at the same time, all of whose
// columns come before later rows.
AgColumnsConfig grouped_by_waves(const AgColumnsDesc& desc, AgColumnsConfig config);
// Chooses how columns are gathered, too.
AgColumnsConfig default_config(const AgColumnsDesc& desc, Target target = Target::kCpu);

// Extent m. Inputs a [m, k/P], b [n, k] or [k, n], bias [n], each rank's own; with scaling scale_a
// of the own columns, [m, 1] or [m, k/P/128], and scale_b as Scaling says. Output c [m, n]. Factors
// with scales of rows are scaled rank by rank before they are added. UserError naming the field of
// a bad desc or config.
Program ag_columns_gemm(const AgColumnsDesc& desc, const AgColumnsConfig& config);

}  // namespace stretto
