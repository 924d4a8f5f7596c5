// Which roles run on the GPU's copy engines, without blocks of the kernel, and what their queues do
// in a launch: the host evaluates a role's tiles to a list of copies and signals for each queue.
//
// After the passes, before kernel.h writes the blocks of all other roles. gpu/engine_queues.h puts
// the lists on streams.
//
// A queue cannot poll a counter, nor add to one. So
// - its waits for what ranks announce in on_start are a *gate*'s, a kernel before the main
//   one, whose last step lets all queues go on;
// - its waits for anything else are kept by the main kernel, which rings a *doorbell*: a word on
//   the own device that the queue waits for and clears; the gate rings one for each queue;
// - it signals by copying a word that holds what the counter reads afterwards. The gate makes these
//   words, so a replayed graph has the present epoch's. That needs counters that one queue writes,
//   and two ranks: words for own counters lie in another rank's memory (gpu/engine_queues.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ir/quota.h"

namespace stretto {

// `count`: what of this launch's quota counter `counter` of `rank` has got once it reads
// epoch * quota + count.
struct EngineMark {
  int rank = 0;
  std::int64_t counter = 0;
  std::int64_t quota = 0, count = 0;
  friend bool operator==(const EngineMark&, const EngineMark&) = default;
};

struct EngineRole {
  int role = -1;
  std::vector<int> queue_of_worker;  // workers that signal the same counter share a queue
  int num_bells = 0;                 // a worker's, at most; 0: all its waits are the gate's
  std::int64_t first_bell = 0;       // worker w's bells follow from first_bell + w * num_bells
};

struct RoleOnSms {
  int role = -1;
  std::string why;  // no copy engine runs it
};

struct CopyEnginePlan {
  std::vector<EngineRole> roles;
  int num_queues = 0;
  std::int64_t first_gate_bell = 0;            // queue q's is first_gate_bell + q
  std::int64_t num_bells = 0;                  // roles' and the gate's
  std::vector<std::vector<EngineMark>> marks;  // [rank]: what its queues may signal
  // Roles meant for copy engines or the host whose copies blocks of the kernel do instead.
  std::vector<RoleOnSms> on_sms;

  const EngineRole* find(int role) const;
};

// `schedule` is at schedule level; signal s has the counters from signal_offsets[s] on.
CopyEnginePlan plan_engines(const Program& schedule,
                            const std::vector<std::int64_t>& signal_offsets);

// Whether a wait for the signal is the gate's: it is notified in on_start and nowhere else.
bool announced_at_start(const Program& schedule, int signal);

// `rows` rows of row_bytes each, pitches apart; offsets are from the tensors' beginnings. Bytes.
struct EngineCopy {
  int from_tensor = -1, from_rank = 0, to_tensor = -1, to_rank = 0;
  std::int64_t from_offset = 0, to_offset = 0;
  std::int64_t rows = 1, row_bytes = 0, from_pitch = 0, to_pitch = 0;
};

struct EngineStep {
  enum class Kind : std::uint8_t { kAwaitBell, kCopy, kSignal };
  Kind kind = Kind::kCopy;
  EngineCopy copy;
  std::int64_t bell = -1;
  std::int64_t mark = -1;  // index into CopyEnginePlan::marks of the queue's rank
  int role = -1, worker = 0;
  std::int64_t tile = -1;
};
// "gate", "copy full@1+4096 <- a@0+0 2048 bytes", "signal arrived[2]@1 to 1", "bell 3": for people
// and tests.
std::string to_string(const Program& schedule, const std::vector<std::int64_t>& signal_offsets,
                      const CopyEnginePlan& plan, int rank, const EngineStep& step);

// [queue]: the steps of one rank's launch, in order. Contiguous copies have one row; empty ones are
// left out. UserError for a copy whose destination is larger than its source at these extents.
std::vector<std::vector<EngineStep>> engine_steps(const Program& schedule,
                                                  const std::vector<std::int64_t>& signal_offsets,
                                                  const CopyEnginePlan& plan, int rank,
                                                  const std::vector<std::int64_t>& extents);

}  // namespace stretto
