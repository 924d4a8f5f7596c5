// c = f(all_gather(a) * b^T): the column-parallel linear layer of sequence-parallel prefill. Each
// rank multiplies its own rows where they are, then those of its peers, the next rank's first, as
// soon as they have arrived. Tiles do not cross from one rank's rows into the next rank's.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/ag_gemm/gather.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct AgGemmDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows of all ranks; each launch has 0 <= m <= this
  std::int64_t n = 0;  // columns on this rank
  std::int64_t k = 0;
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, c_dtype = DType::kF32;
  bool bias = false;
  bool swiglu = false;               // silu(a * b_gate^T) * (a * b_up^T)
  Scaling scaling = Scaling::kNone;  // for fp8 factors
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  bool gathered = false;             // all_gather(a) is an output, too
  friend bool operator==(const AgGemmDesc&, const AgGemmDesc&) = default;
};

struct AgGemmConfig {
  MainLoop loop;
  Gather gather = Gather::kPull;
  int num_gather_workers = 1;          // copy queues (kPull; at most one per peer) or SMs (kPush)
  std::int64_t comm_rows = 0;          // rows of one transfer, at most
  std::int64_t channels_per_rank = 1;  // what a tile waits for: 1/channels of a rank's rows
  // kPush: tiles reach across the rows of all ranks, of which the own ones are sent to this rank,
  // too, so that few rows read the weights once. Every tile waits for all ranks.
  bool across = false;
  friend bool operator==(const AgGemmConfig&, const AgGemmConfig&) = default;
};

NamedFields fields_of(AgGemmDesc& desc);
std::string to_string(const AgGemmDesc& desc);
NamedFields fields_of(AgGemmConfig& config);
AgGemmConfig default_config(const AgGemmDesc& desc, Target target, Gather gather);
// SMs that copy the own rows into the output `gathered`, beside those of the config.
int keeping_sms(const AgGemmDesc& desc);
// How many row tiles share a column: at most `raster`, and no more than a rank has, so that the own
// rows come first. Where a rank has few rows, those of all ranks share a column instead, so that
// weights are read once. What was measured is in docs/performance/overlap.md, 'Why the defaults are
// what they are'.
std::int64_t own_first_raster(const AgGemmDesc& desc, const GemmTile& tile, std::int64_t raster);
// The config that a program really has: as many channels and queues as there are rows for. With one
// rank nothing travels, and fields that say how do not count.
AgGemmConfig fitted(const AgGemmDesc& desc, AgGemmConfig config);
// Chooses how rows are gathered, too.
AgGemmConfig default_config(const AgGemmDesc& desc, Target target = Target::kCpu);

// Extent m. Rank r has the rows [r * ceil(m/P), (r + 1) * ceil(m/P)) of m. Inputs a [ceil(m/P), k],
// symmetric where peers fetch it (kPull), whose rows past m are not read; b [n, k] or [k, n]
// (swiglu: b_gate, b_up), bias [n] (bias_gate, bias_up), each rank's own; with scaling scale_a, as
// symmetric as a, of the own rows, which travels with them, and scale_b (scale_b_gate, scale_b_up),
// in the shapes that Scaling says. Outputs c [m, n] and gathered [m, k], symmetric where peers
// write it. UserError naming the field of a bad desc or config, or of one that is not as fitted.
// After TileLink (arXiv 2503.20313, section 5) and Flux (arXiv 2406.06858): decoupled communication
// and compute tiles, tile order rotated by rank.
Program ag_gemm(const AgGemmDesc& desc, const AgGemmConfig& config);

}  // namespace stretto
