// What the steps of ir/sync_table.h order: which accesses before a synchronisation are over when it
// is seen, and which accesses after it may rely on that.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "stretto/ir/sync_table.h"
#include "stretto/proof/instance_graph.h"

namespace stretto {

// What has to be over.
enum class Past : std::uint8_t {
  kOrder,      // nothing: order in time alone
  kRead,       // reads by the agent's threads
  kWrite,      // their writes, visible
  kBulkStore,  // writes by TMA, visible
  kBulkLoad,   // reads by TMA, which end where the slot is got
};
inline constexpr std::size_t kNumPasts = 4;  // that a release can carry: all but bulk loads
// Who comes after.
enum class Path : std::uint8_t { kThreads, kBulk };

// The first step that the row lacks to carry accesses of the kind, or to cover the accesses that
// follow; empty where it lacks none.
std::string missing_to_carry(const SyncSteps& row, Past past);
std::string missing_to_cover(const SyncSteps& row, Path path);

struct RowPower {
  std::array<bool, kNumPasts> carries{};  // at its release, or where it has none at its end
  std::array<bool, 2> covers{};           // per Path
  bool lands = false;                     // bulk loads end with it
  Scope release = Scope::kThread, acquire = Scope::kThread;
};
RowPower power_of(const SyncSteps& row);
inline constexpr RowPower kEverything = {.carries = {true, true, true, true},
                                         .covers = {true, true},
                                         .lands = true,
                                         .release = Scope::kSys,
                                         .acquire = Scope::kSys};

struct SyncPowers {
  std::array<RowPower, kNumSyncRows> rows;
  const RowPower& operator[](SyncRow row) const { return rows[static_cast<std::size_t>(row)]; }
  RowPower& operator[](SyncRow row) { return rows[static_cast<std::size_t>(row)]; }
};
SyncPowers powers_of(const SyncTable& table);

// What the table lacks for the slots of pipes: a slot is got when it is full, and filled again when
// its readers are done. Empty where it lacks nothing.
std::string missing_in_pipes(const SyncTable& table);

// The row of a notify, fence or packet store, and that of a wait or packet load.
SyncRow release_row(const InstanceGraph& graph, const Sync& sync);
SyncRow acquire_row(const InstanceGraph& graph, const Sync& sync);

}  // namespace stretto
