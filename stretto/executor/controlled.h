// All ranks of a program in one thread, under a schedule that the caller chooses, with every access
// checked for races: the dynamic witness for the proof. What fails here must be rejected there.
//
// The caller of the launches is an agent too: on each rank it writes every input before a launch
// starts and reads every output after it has ended, ordered by that rank's stream alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/ir/quota.h"

namespace stretto {

enum class SchedulePolicy : std::uint8_t {
  kRandom,      // any agent that can go on, from `seed`
  kRoundRobin,  // rank by rank, agent by agent
  kDelayRank,   // `delayed_rank` only when nobody else can go on
  kRunAhead,    // one agent as far as it gets, then the next
};

// An agent that can go on. role -1: on_start, on_end; worker -1: the caller, about to launch.
struct ScheduleChoice {
  int rank = 0, role = -1, worker = -1, agent = 0;
  std::uint64_t epoch = 0;
};

// Storage of one rank's tensors during a controlled run. Null where no storage is kept.
class ControlledMemory {
 public:
  virtual ~ControlledMemory() = default;
  virtual std::byte* data(int rank, int tensor_idx) = 0;
};

struct ControlledOptions {
  int launches = 2;                   // back to back on every rank
  std::vector<std::int64_t> extents;  // absent: the bounds
  // Where not empty, extents of launch i are those at i modulo the count, on every rank.
  std::vector<std::vector<std::int64_t>> extents_in_turn;
  SchedulePolicy policy = SchedulePolicy::kRandom;
  std::uint64_t seed = 1;
  int delayed_rank = 0;
  // false: only index arithmetic and synchronisation; storage is kept for integer tensors (tables)
  // and packets alone.
  bool compute = true;
  // Takes the place of the policy: returns an index into the choices.
  std::function<std::size_t(std::span<const ScheduleChoice>)> choose;
  // Called as the caller's agent, to write inputs and to look at outputs.
  std::function<void(int rank, int launch, ControlledMemory&)> before_launch, after_launch;
};

struct ControlledResult {
  bool race = false;
  bool deadlock = false;
  std::string report;  // the two accesses, or every agent that waits and for what
  std::int64_t steps = 0;
  bool ok() const { return !race && !deadlock; }
};

// Ends at the first race or deadlock. UserError as from Instance::launch. `program` is schedule
// level.
ControlledResult run_controlled(std::shared_ptr<const Program> program, const Quotas& quotas,
                                const ControlledOptions& options);

}  // namespace stretto
