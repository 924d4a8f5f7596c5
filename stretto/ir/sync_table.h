// What the lowered code does at every synchronisation, step by step: the one place that knows.
// codegen/sync_text.cc writes these steps, the proof (proof/sync_power.h) asks what they order, and
// tests hold the rest of the generated code (pipes, ends of a kernel) against them.
//
// Memory is reached in three ways: by the agent's threads (generic proxy), by TMA (async proxy;
// one thread issues, another may see it complete), and by copy queues, which stand outside of the
// device and so need system scope. Source of the rules: PTX ISA, memory consistency model, sections
// on proxies, causality order and cp.async.bulk completion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

enum class StepKind : std::uint8_t {
  kCompleteStores,  // bulk stores of the issuing thread are written, not merely read
  kReadStores,      // ... merely read: never enough (mutants of the table)
  kCompleteLoads,   // bulk loads of this put arrive at the barrier that the getter waits for
  kMeet,        // barrier of the agent's threads, of the block's at the ends of a kernel; of each
                // warp where every warp releases
  kFence,       // fence.acq_rel: this thread's writes before, its reads after
  kRelease,     // the word that others poll: after this thread's accesses, and after those
                // of threads that it met
  kAcquire,     // the poll
  kProxyFence,  // fence.proxy.async: bulk accesses of this thread come after
};

// Each includes those before it.
enum class Scope : std::uint8_t { kThread, kCta, kGpu, kSys };

enum class Doers : std::uint8_t {
  kFirst,    // one thread of the agent; notifies and waits in a loop may share out among threads
  kIssuers,  // those that issue bulk stores: one of every warpgroup
  kWarps,    // one of every warp, for all of it
  kAll,      // where they poll, all poll the same word
  kEach,     // every thread for the words that it reads or writes itself
};

struct SyncStep {
  StepKind kind = StepKind::kMeet;
  Doers by = Doers::kAll;
  Scope scope = Scope::kThread;  // kFence, kRelease, kAcquire
  friend bool operator==(const SyncStep&, const SyncStep&) = default;
};
using SyncSteps = std::vector<SyncStep>;

enum class SyncRow : std::uint8_t {
  kNotify,
  kWait,
  kFence,         // worker_fence
  kPipePut,       // a slot filled by TMA becomes full
  kPipeFill,      // a slot filled by threads does
  kPipeStage,     // a slot filled from registers does, which TMA may store from
  kPipeGet,       // a full slot is waited for
  kPipeRelease,   // a slot read becomes free
  kPipeEpilogue,  // a slot stored by TMA does
  kPipeClaim,     // a free slot is waited for
  kBarrierReach,  // arrive, and the first half of barrier_sync
  kBarrierPass,   // its second half
  kStorePacket,   // payload and tag in one store
  kLoadPacket,
  kStartDone,  // on_start before the roles, where it does more than notify
  kRolesDone,  // the roles before on_end
};
inline constexpr std::size_t kNumSyncRows = 16;
const char* name(SyncRow row);

struct SyncTable {
  std::array<SyncSteps, kNumSyncRows> rows;
  // Loads by threads go through caches that writes of others reach. Tensors that somebody writes
  // during a launch, and symmetric ones, may not be read otherwise.
  bool coherent_loads = true;
  // Whether reductions of several ranks may meet in one buffer. Bulk reductions promise no order
  // and no atomicity across devices.
  bool shared_reductions = false;

  const SyncSteps& operator[](SyncRow row) const { return rows[static_cast<std::size_t>(row)]; }
  SyncSteps& operator[](SyncRow row) { return rows[static_cast<std::size_t>(row)]; }
};
const SyncTable& sync_table();

// Says, for instance, "fence.acq_rel.sys by one thread".
std::string describe(const SyncStep& step);

// Whether generated code may make the access by TMA. It decides by layout; this is what it never
// goes beyond. `put`: a kPipePut. `store`: a kStore of `agent`.
bool may_load_in_bulk(const Program& program, const Op& put);
bool may_store_in_bulk(const Program& program, const Agent& agent, const Op& store);

}  // namespace stretto
