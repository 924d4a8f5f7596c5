// What a generated kernel needs from whoever launches it. The kernel has one parameter, a struct
// whose members lie in this order, each aligned to 8 bytes (the maps to 64):
//   TensorMap maps[maps.size()]
//   u8* tensors[number of tensors][world size]    base address on each rank; own rank alone for
//                                                 local tensors
//   u64* signals[world size]                      base of each rank's block of counters
//   const u64* quotas                          by counter of the own rank
//   u64* control                                  own rank: num_control_words, zero at creation
//   Watch {u64* abort; DeviceFault* fault; u64 timeout_ns; i64 rank; u64* here}
//   i64 vars[extents.size()]                      extents and scalars in declaration order
//   const i64* scalars                            null, or where on the device the scalars stand:
//                                                 a captured launch may then be replayed with
//                                                 others
//   i64 rank
// and, where roles run on copy engines (copy_engine_plan.h), then
//   const u64* engine_marks                       own rank: quota and count of each of its marks
//   u64* engine_words                             what the gate writes: a word per mark,
//   u64* engine_words_for_peers                   twice: for own counters, in another rank's
//                                                 memory, and for other ranks' counters, in the own
//   u64* engine_bells                             doorbells; zero but while a queue is to see them
//   i64 num_engine_marks
// and, in a kernel that records, then
//   EventLog {DeviceEvent* events; u32* counts; i64 capacity}   of the own rank's lanes; null: off
// The gate has the same parameter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/codegen/copy_engine_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// A TMA view of a tensor: innermost first columns, rows, then one outer dimension.
struct TensorMapPlan {
  int tensor = -1;
  int rank = -1;       // whose memory; -1: the own rank's
  int row_dim = -1;    // -1: the tensor has one row
  int outer_dim = -1;  // -1: none. A buffer's slots follow each other along the outer dimension.
  std::int64_t box_rows = 1, box_cols = 1;
  int swizzle_bytes = 0;
  friend bool operator==(const TensorMapPlan&, const TensorMapPlan&) = default;
};

// A place where a kernel waits, or checks the contract of a table, for the record of a fault.
struct WaitSite {
  int role = -1, signal = -1;
  int packets = -1;      // the tensor whose packets are waited for
  int first_block = -1;  // the role's; -1: a gate, on_start or on_end
  int table = -1;        // the fault's counter is the entry, and what was seen its value
  std::string file;
  int line = 0;
};

// One thread of time in a kernel that records: an agent of a worker. Without a role: on_start
// (agent 0), on_end (agent 1), and what no agent uses (-1).
struct EventLanePlan {
  int role = -1, agent = -1, worker = 0;
};

// Words of the control block, per rank.
enum ControlWord : int {
  kControlEpoch = 0,      // launches so far
  kControlStarted = 1,    // epoch + 1 once on_start has run, where roles wait for that
  kControlDone = 2,       // blocks that have finished, over all launches
  kControlTickets = 3,    // tiles dealt out in this launch, per role by ticket
  kControlAborted = 16,   // and the next: what Watch::here says, beside which nobody writes
  kNumControlWords = 32,  // then, of each block, its launches so far, in a kernel that counts so
};

struct LaunchPlan {
  std::string kernel;
  int grid = 1, block = 128, cluster = 1;
  bool cooperative = false;  // blocks wait for each other (residency.h), and not beside a gate
  std::size_t shared_bytes = 0;
  // Room for so many more, at a multiple of 16 behind the rest: where.
  std::size_t take_shared(std::size_t bytes) {
    std::size_t at = (shared_bytes + 15) / 16 * 16;
    shared_bytes = at + bytes;
    return at;
  }
  std::vector<TensorMapPlan> maps;
  std::vector<WaitSite> sites;
  // The role has its blocks from there on.
  void put_role(int role, int first_block) {
    for (WaitSite& site : sites) {
      if (site.role == role) site.first_block = first_block;
    }
  }
  CopyEnginePlan engines;
  // A kernel of 128 threads that comes before the main kernel, does on_start, waits for what other
  // ranks announce there, writes the engines' words and lets their queues go on. One block, or the
  // last of as many as the main kernel has, of which the others end at once. Empty: on_start is the
  // main kernel's.
  std::string gate;
  // The main kernel begins beside the gate, as it would beside an on_start that only notifies.
  bool beside_gate = false;
  std::size_t gate_shared_bytes = 0;
  // Counters of a rank: signal s starts at signal_offsets[s].
  std::vector<std::int64_t> signal_offsets;
  std::int64_t num_counters = 0;
  int num_control_words = kNumControlWords;
  std::vector<EventLanePlan> event_lanes;  // empty: the kernel does not record
};

}  // namespace stretto
