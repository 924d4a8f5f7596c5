// out = reduce_scatter(a * b^T): the row-parallel linear layer of sequence-parallel prefill. Each
// rank multiplies the rows of the next rank first and its own last, and every block of rows leaves
// for its owner while later blocks are still being multiplied.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

struct GemmRsDesc {
  int world_size = 1;
  std::int64_t m = 0;  // largest number of rows of all ranks; each launch has 0 <= m <= this
  std::int64_t n = 0;
  std::int64_t k = 0;  // this rank's
  DType a_dtype = DType::kF32, b_dtype = DType::kF32, out_dtype = DType::kF32;
  bool average = false;              // sums are divided by world_size
  bool residual = false;             // + residual[ceil(m/P), n], of the result's dtype
  Scaling scaling = Scaling::kNone;  // for fp8 factors
  bool b_kn = false;                 // b [k, n] instead of [n, k]
  friend bool operator==(const GemmRsDesc&, const GemmRsDesc&) = default;
};

enum class Scatter : std::uint8_t {
  kEpilogue,    // the GEMM stores its tiles straight to their owner
  kCopyEngine,  // the GEMM stores to the own memory, copy engines send what is finished
};

struct GemmRsConfig {
  // The raster divides a rank's row tiles, or is as many and more. An agent that stores tells
  // owners or engines, too, and who multiplies waits for neither. With sums in the epilogue what
  // arrived may be loaded ahead, 128 bytes of columns at a time, through the left factor's slots
  // where those are as many; with copy engines only: a role that itself writes where others' parts
  // arrive cannot be split.
  MainLoop loop;
  int num_reduce_sms = 1;  // 0: the GEMM's SMs sum in the epilogue of the own rows, which come last
  Scatter scatter = Scatter::kEpilogue;
  int num_copy_queues = 1;             // kCopyEngine
  std::int64_t channels_per_rank = 1;  // what is sent and waited for: 1/channels of a rank's rows
  // Copies of the slots that partial sums arrive in. 1: a rank is sent to only once it has started
  // the launch; 2: a rank may be sent to while it is still in the launch before.
  int num_slots = 2;
  // kEpilogue, sums in the epilogue, two slots: tiles reach across the rows of all ranks, so that
  // few rows read the weights once; each rank gets its rows of every tile.
  bool across = false;
  friend bool operator==(const GemmRsConfig&, const GemmRsConfig&) = default;
};

const char* name(Scatter scatter);  // "epilogue", "copy_engine"
NamedFields fields_of(GemmRsDesc& desc);
std::string to_string(const GemmRsDesc& desc);
NamedFields fields_of(GemmRsConfig& config);
GemmRsConfig default_config(const GemmRsDesc& desc, Target target = Target::kCpu);
// The config that a program really has: as many channels and as much raster as a rank's rows allow,
// and no queues or agents that the other fields leave without work. With one rank nothing travels,
// and fields that say how do not count.
GemmRsConfig fitted(const GemmRsDesc& desc, GemmRsConfig config);
// The same tiles sent the other way, without what only one way has.
GemmRsConfig with_scatter(GemmRsConfig config, Scatter scatter);
// The default for GPUs among those whose tiles keep to the rows of one rank, however few.
GemmRsConfig gpu_config_of_runs(const GemmRsDesc& desc, const GpuTarget& gpu);

// Extent m. Rank r receives the rows [r * ceil(m/P), (r + 1) * ceil(m/P)) of m. Inputs a [m, k],
// b [n, k] or [k, n], with scaling scale_a and scale_b in the shapes that Scaling says, each rank's
// own: partial sums are scaled before they leave; residual [ceil(m/P), n]. Output out [ceil(m/P),
// n]; its rows past m are zero. Partial sums are rounded to the result's dtype once, summed in fp32
// in rank order, divided where it is an average, and rounded again. UserError
// naming the field of a bad desc or config, or of one that is not as fitted. After Flux (arXiv
// 2406.06858, section 4), with a fixed order of summation.
Program gemm_rs(const GemmRsDesc& desc, const GemmRsConfig& config);

}  // namespace stretto
