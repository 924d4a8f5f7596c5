// The collectives as tile programs. Names and meanings as in MPI and NCCL; data are matrices [m, n]
// whose rows are split over the ranks in runs of ceil(m / P), the last ones shorter or empty. m is
// a run-time extent up to desc.m.
//
// Reductions add and multiply in rank order in fp32 and round once, so one-shot, two-shot and
// packet all-reduce give the same bits on every rank, launch and timing; the ring is the exception
// and says so. Whole numbers stay whole numbers: sums and products of them wrap.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/ops/operator/rank_sum.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

// What elements travel as. Not kSame: quantised while they are sent, each row with a float32 scale
// in which its largest element is 127 (int8) or 448 (e4m3), and dequantised where they arrive.
enum class Payload : std::uint8_t { kSame, kInt8, kE4M3 };
const char* name(Payload payload);  // "same", "int8", "float8_e4m3fn"

struct CollectiveDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;  // bound of the run-time extent `m`, rows over all ranks
  std::int64_t n = 1;  // columns
  int world_size = 1;
  // A reduction that divides takes floats alone. One that multiplies has launches take the float
  // `factor` after m, the same on all ranks, and elements are float32 or narrower.
  Reduction reduction = Reduction::kSum;
  // For all_gather, all_to_all, and sums by reduce_scatter and the two-shot all_reduce, in worlds
  // of several ranks; for f32, f16 and bf16 in rows of up to kMostPayloadColumns. An element that
  // has travelled is off by no more than 1/254 (int8) or 1/28 (e4m3) of the largest of its row, if
  // that is 2^-100 or more, before it is rounded to the dtype; a row that has infinity, with int8
  // also one that has NaN, becomes NaN. Sums
  // are of parts that have travelled and of the own part as it is; an all-reduce's sums travel once
  // more. All-gather and all-reduce give the same bits on every rank: what a rank has itself it
  // takes as the others get it.
  Payload payload = Payload::kSame;
  friend bool operator==(const CollectiveDesc&, const CollectiveDesc&) = default;
};
constexpr std::int64_t kMostPayloadColumns = 16384;  // a row is in registers at once

enum class AllReduceKind : std::uint8_t {
  kOneShot,  // every rank pushes its input to every rank: (P-1) times the bytes, one signal a tile
  kTwoShot,  // reduce-scatter, then all-gather: least bytes
  kPacket,   // one-shot with data and epoch tag in one 8-byte store: twice the bytes of kOneShot,
             // and no signal to wait for
  kRing,     // bandwidth-optimal on rings; sums in ring order and rounds at each hop
};

// A tile is what one signal covers.
struct CollectiveConfig {
  std::int64_t tile_rows = 64;
  std::int64_t tile_cols = 512;  // for reductions; copies take whole rows
  std::int64_t piece_rows = 0;   // rows of a tile in registers at a time; 0: all
  int num_workers = 1;           // SMs (CPU: coroutines) of each role that computes
  int num_queues = 1;            // copy engines
  int num_copy_sms = 0;          // copies by that many SMs instead of copy engines
  int threads = 0;               // on an SM; 0: as the code generator has it
  AllReduceKind all_reduce = AllReduceKind::kTwoShot;
  // Gather, scatter, all-to-all and kTwoShot: each rank writes what others need into two slots of
  // their memory, instead of reading from theirs once they say that it may. Nobody is asked, and
  // nobody waits to be read: two hops of a signal less, for a copy more. For small messages.
  bool push = false;
  // Those that push send payload and launch number in one store of 8 bytes, so that nobody signals:
  // a round trip less for twice the bytes, and launches in a graph may start early.
  bool packets = false;
  // Those that push, not as packets, have so many tiles of each worker under way, in a ring of
  // slots that readers free, instead of two slots for the whole message. For large messages.
  int ring_slots = 0;
  // SMs that only receive, in rings but an all-reduce's; 0: workers do both.
  int num_receivers = 0;
  friend bool operator==(const CollectiveConfig&, const CollectiveConfig&) = default;
};
NamedFields fields_of(CollectiveConfig& config);

// Whether anything is quantised: a rank alone sends nothing.
bool quantizes(const CollectiveDesc& desc);

NamedFields fields_of(CollectiveDesc& desc);
const char* name(AllReduceKind kind);
// The default for gather, scatter and all-to-all.
CollectiveConfig default_config(const CollectiveDesc& desc, Target target = Target::kCpu);
CollectiveConfig default_two_shot_config(const CollectiveDesc& desc, Target target = Target::kCpu);
// The same for what has no form in which senders write: a broadcast, an all-reduce by another kind.
CollectiveConfig default_fetching_config(const CollectiveDesc& desc, Target target = Target::kCpu);
// This also chooses the algorithm.
CollectiveConfig default_all_reduce_config(const CollectiveDesc& desc,
                                           Target target = Target::kCpu);
// Configs for GPUs that are worth a measurement and do not push. num_roles: 2 for the two-shot
// all-reduce, else 1; copies: a role copies, so copy engines may. The caller sets `all_reduce`.
std::vector<CollectiveConfig> gpu_candidates(const CollectiveDesc& desc, int num_roles, bool copies,
                                             const GpuTarget& gpu = {});
// Configs of whole rows for reductions that do not push. A rank adds up `rows` of them: a part, or
// in one hop all.
std::vector<CollectiveConfig> gpu_row_candidates(const CollectiveDesc& desc, std::int64_t rows,
                                                 int num_roles, const GpuTarget& gpu = {});
// Configs that push, for gather, scatter, all-to-all and (two_hops) kTwoShot.
std::vector<CollectiveConfig> gpu_push_candidates(const CollectiveDesc& desc, bool two_hops,
                                                  const GpuTarget& gpu = {});

// `in` is symmetric where peers read it: in configs that do not push.
//
// in [ceil(m/P), n] -> out [m, n]. Pull by copy engine.
Program all_gather(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] -> out [ceil(m/P), n]: the sum of this rank's rows; rows past the end are zero.
Program reduce_scatter(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] (read by peers for kTwoShot alone) -> out [m, n].
Program all_reduce(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [P, m, n]: block d goes to rank d, of which the first counts matter -> out [P, m, n]: block s
// came from rank s, rows past recv_counts[s] zero. recv_counts [P] i32, 0..m (contract). Here m is
// fixed, not an extent.
Program all_to_all(const CollectiveDesc& desc, const CollectiveConfig& config);
// in [m, n] symmetric, the root's -> out [m, n] on every rank.
Program broadcast(const CollectiveDesc& desc, const CollectiveConfig& config, int root);
// in [m, n] symmetric -> the root's out [m, n], as all_reduce has it. Other ranks have no `out`,
// and pass none.
Program reduce_to(const CollectiveDesc& desc, const CollectiveConfig& config, int root);
// in [ceil(m/P), n] symmetric -> the root's out [m, n]; elsewhere as in reduce_to.
Program gather_to(const CollectiveDesc& desc, const CollectiveConfig& config, int root);
// in [m, n] symmetric, `source`'s -> `target`'s out [m, n]; elsewhere as in reduce_to.
Program send_to(const CollectiveDesc& desc, const CollectiveConfig& config, int source, int target);
// in [m, n] symmetric, the root's -> out [ceil(m/P), n]: this rank's rows; those past the end are
// zero.
Program scatter_from(const CollectiveDesc& desc, const CollectiveConfig& config, int root);

OperatorInfo all_gather_info();
// For sums, products or premultiplied sums.
OperatorInfo reduce_scatter_info(Reduction reduction = Reduction::kSum);
// For sums, maxima or premultiplied sums.
OperatorInfo all_reduce_info(AllReduceKind kind, Reduction reduction = Reduction::kSum);
OperatorInfo all_to_all_info();
OperatorInfo all_gather_int8_info();
OperatorInfo reduce_scatter_int8_info();
OperatorInfo all_reduce_int8_info();
OperatorInfo all_to_all_int8_info();
OperatorInfo broadcast_info();
OperatorInfo reduce_info();
OperatorInfo gather_info();
OperatorInfo scatter_info();
OperatorInfo send_info();

}  // namespace stretto
