// The collectives as tile programs. Names and meanings as in MPI and NCCL; data are matrices [m, n]
// whose rows are split over the ranks in runs of ceil(m / P), the last ones shorter or empty. m is
// a run-time extent up to desc.m.
//
// Reductions add in rank order in fp32 and round once, so one-shot, two-shot and packet all-reduce
// give the same bits on every rank, launch and timing; the ring is the exception and says so.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/harness/op_case.h"
#include "stretto/ops/harness/target.h"

namespace stretto {

struct CollectiveDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;  // bound of the run-time extent `m`, rows over all ranks
  std::int64_t n = 1;  // columns
  int world_size = 1;
};

enum class AllReduceKind : std::uint8_t {
  kOneShot,  // every rank reads every rank's input: least latency, (P-1) times the bytes
  kTwoShot,  // reduce-scatter, then all-gather: least bytes
  kPacket,   // one-shot by push, data and epoch tag in one 8-byte store: no separate signal to wait
             // for
  kRing,     // bandwidth-optimal on rings; sums in ring order and rounds at each hop
};

struct CollectiveConfig {
  std::int64_t tile_rows = 64;
  std::int64_t tile_cols = 512;  // of reductions; copies take whole rows
  int num_workers = 1;           // SMs (CPU: coroutines) of each role that computes
  int num_queues = 1;            // copy engines
  int num_copy_sms = 0;          // copies by that many SMs instead of copy engines
  AllReduceKind all_reduce = AllReduceKind::kTwoShot;
};

std::string to_string(const CollectiveDesc& desc);
std::string to_string(const CollectiveConfig& config);
const char* name(AllReduceKind kind);
CollectiveConfig default_config(const CollectiveDesc& desc, Target target = Target::kCpu);

// in [ceil(m/P), n] symmetric -> out [m, n]. Pull by copy engine.
Program all_gather(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] symmetric -> out [ceil(m/P), n]: the sum of this rank's rows; rows past the end are
// zero.
Program reduce_scatter(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] (symmetric, except kPacket and kRing: local) -> out [m, n].
Program all_reduce(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [P, m, n] symmetric: block d goes to rank d, of which the first counts matter -> out [P, m,
// n]: block s came from rank s, rows past recv_counts[s] zero. recv_counts [P] i32, 0..m
// (contract). Here m is fixed, not an extent.
Program all_to_all(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] symmetric, of the root -> out [m, n] on every rank.
Program broadcast(const CollectiveDesc& desc, const CollectiveConfig& config, int root);

OperatorInfo all_gather_info();
OperatorInfo reduce_scatter_info();
OperatorInfo all_reduce_info(AllReduceKind kind);
OperatorInfo all_to_all_info();
OperatorInfo broadcast_info();

}  // namespace stretto
