// out = all_reduce(a * b^T): the row-parallel linear layer of decode. Every rank gets the whole
// sum, the same bits on all. Both algorithms give the same bits where their tiles have at most
// kernels::kMaxSmallRows rows, or more, in both (executor/kernels/dot.h says where one processor's
// instructions differ).
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"

namespace stretto {

struct GemmArDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows; each launch has 0 <= m <= this
  std::int64_t n = 0;
  std::int64_t k = 0;  // this rank's
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, out_dtype = DType::kF32;
  bool residual = false;  // + residual[m, n], of the result's dtype, the same on every rank
  Scaling scaling = Scaling::kNone;  // for fp8 factors
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  friend bool operator==(const GemmArDesc&, const GemmArDesc&) = default;
};

enum class ReduceShots : std::uint8_t {
  kOne,     // partial sums go to every rank, each sums all rows: one hop, P times the bytes
  kTwo,     // partial sums go to the owner of their rows, which sends the sums to every rank
  kShared,  // the same two hops for few rows: of each tile every rank owns a share of the rows
};
const char* name(ReduceShots shots);

struct GemmArConfig {
  // kTwo: as in GemmRsConfig, and with an agent that stores ranks own whole tiles of rows. The
  // others have no raster, and no slots of such agents.
  MainLoop loop;
  ReduceShots shots = ReduceShots::kOne;
  int num_reduce_sms = 1;  // 0: each SM of the GEMM sums the tiles it computed, in its epilogue
  // Flags travel with the data, for few rows: kOne with sums in the epilogue, kShared.
  bool packets = false;
  // Groups of tiles (kOne, kShared) or of a rank's row blocks (kTwo) that are waited for.
  std::int64_t channels = 1;
  int num_slots = 2;                     // as in GemmRsConfig
  Scatter scatter = Scatter::kEpilogue;  // kTwo: as in GemmRsConfig
  Scatter gather = Scatter::kEpilogue;   // kTwo: whoever sums stores to all ranks, or engines send
  int num_copy_queues = 1;               // kTwo: queues of each role of engines
  // kOne, kShared: the weights are the left factor of the tensor core, as in GemmConfig, so that a
  // tile may have as many rows as there are. Sums are turned before they travel. Without scaling.
  bool swap_ab = false;
  int split_k = 1;  // kOne with sums in the epilogue, by signals: as in GemmConfig
  friend bool operator==(const GemmArConfig&, const GemmArConfig&) = default;
};

NamedFields fields_of(GemmArDesc& desc);
std::string to_string(const GemmArDesc& desc);
NamedFields fields_of(GemmArConfig& config);
// The config that a program really has: as many channels and as much raster as tiles and ranks
// allow, and nothing that the other fields leave without work. With one rank nothing travels, and
// fields that say how do not count.
GemmArConfig fitted(const GemmArDesc& desc, GemmArConfig config);
// The reduce-scatter half of two shots.
GemmRsDesc scattered(const GemmArDesc& desc);
// This also chooses the number of shots.
GemmArConfig default_config(const GemmArDesc& desc, Target target = Target::kCpu);
GemmArConfig default_config(const GemmArDesc& desc, ReduceShots shots,
                            Target target = Target::kCpu);

// Extent m. Inputs a [m, k] and b [n, k] or [k, n], each rank's own; with scaling scale_a and
// scale_b, each rank's own, in the shapes that Scaling says: partial sums are scaled before they
// leave; residual [m, n]. Output out [m, n], symmetric. Partial sums are rounded to the result's
// dtype once, summed in fp32 in rank order and rounded again. UserError naming the field of a bad
// desc or config, or of one that is not as fitted.
Program gemm_ar(const GemmArDesc& desc, const GemmArConfig& config);

}  // namespace stretto
