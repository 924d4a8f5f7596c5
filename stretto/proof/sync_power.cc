#include "stretto/proof/sync_power.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"

namespace stretto {
namespace {

using Found = SyncSteps::const_iterator;

Found find(Found begin, Found end, StepKind kind) {
  return std::find_if(begin, end, [kind](const SyncStep& s) { return s.kind == kind; });
}

// The part of a row up to its release, and the part from its acquire on. worker_fence has neither:
// both parts are the whole.
struct Parts {
  Found release, acquire, end;
};
Parts parts(const SyncSteps& row) {
  Parts p{find(row.begin(), row.end(), StepKind::kRelease),
          find(row.begin(), row.end(), StepKind::kAcquire), row.end()};
  return p;
}

bool by_issuers(const SyncStep& step) {
  return step.by == Doers::kIssuers || step.by == Doers::kAll;
}

std::string lacks(StepKind kind, Doers by, Scope scope = Scope::kThread) {
  return describe(SyncStep{kind, by, scope});
}

// worker_fence: every thread fences what it wrote, then all meet.
std::string missing_in_fence(const SyncSteps& row, Past past) {
  Found meet = find(row.begin(), row.end(), StepKind::kMeet);
  Found fence = find(row.begin(), meet, StepKind::kFence);
  if (meet == row.end()) return lacks(StepKind::kMeet, Doers::kAll);
  if (past == Past::kRead) return "";
  if (fence == meet || fence->by != Doers::kAll) {
    return lacks(StepKind::kFence, Doers::kAll, Scope::kGpu);
  }
  Found stores = find(row.begin(), fence, StepKind::kCompleteStores);
  bool complete = stores != fence && by_issuers(*stores);
  if (past == Past::kBulkStore && !complete) {
    return lacks(StepKind::kCompleteStores, Doers::kIssuers);
  }
  return "";
}

}  // namespace

std::string missing_to_carry(const SyncSteps& row, Past past) {
  if (past == Past::kOrder) return "";
  Parts p = parts(row);
  if (p.release == p.end && p.acquire == p.end) return missing_in_fence(row, past);
  if (p.release == p.end) return lacks(StepKind::kRelease, Doers::kFirst, Scope::kSys);
  if (p.release > p.acquire) return lacks(StepKind::kRelease, Doers::kFirst, Scope::kSys);
  Found meet = find(row.begin(), p.release, StepKind::kMeet);
  bool met = meet != p.release;
  bool all = p.release->by == Doers::kAll;
  bool warps = p.release->by == Doers::kWarps;
  // Bulk stores are known to be complete by their issuers alone, until these have met the others.
  if (past == Past::kBulkStore) {
    Found limit = met ? meet : p.release;
    Found stores = find(row.begin(), limit, StepKind::kCompleteStores);
    if (stores == limit || !by_issuers(*stores)) {
      return lacks(StepKind::kCompleteStores, Doers::kIssuers);
    }
  }
  if (all || (warps && past == Past::kRead)) return "";
  // One thread releases for those that it met.
  return met ? "" : lacks(StepKind::kMeet, Doers::kAll);
}

std::string missing_to_cover(const SyncSteps& row, Path path) {
  Parts p = parts(row);
  bool fence = p.release == p.end && p.acquire == p.end;
  if (!fence && p.acquire == p.end) return lacks(StepKind::kAcquire, Doers::kFirst, Scope::kSys);
  Found from = fence ? row.begin() : p.acquire;
  bool all = !fence && p.acquire->by == Doers::kAll;
  Found meet = find(from, p.end, StepKind::kMeet);
  if (!all && meet == p.end) return lacks(StepKind::kMeet, Doers::kAll);
  if (path == Path::kThreads) return "";
  Found proxy = find(fence || all ? from : meet, p.end, StepKind::kProxyFence);
  bool fenced = proxy != p.end && by_issuers(*proxy);
  return fenced ? "" : lacks(StepKind::kProxyFence, Doers::kAll);
}

RowPower power_of(const SyncSteps& row) {
  RowPower power;
  for (Past past : {Past::kOrder, Past::kRead, Past::kWrite, Past::kBulkStore}) {
    power.carries[static_cast<std::size_t>(past)] = missing_to_carry(row, past).empty();
  }
  for (Path path : {Path::kThreads, Path::kBulk}) {
    power.covers[static_cast<std::size_t>(path)] = missing_to_cover(row, path).empty();
  }
  Parts p = parts(row);
  power.lands = find(row.begin(), p.end, StepKind::kCompleteLoads) != p.end;
  if (p.acquire != p.end) power.acquire = p.acquire->scope;
  if (p.release != p.end) {
    power.release = p.release->scope;
    for (Found s = row.begin(); s != p.release; ++s) {
      if (s->kind == StepKind::kFence) power.release = std::min(power.release, s->scope);
    }
  }
  return power;
}

SyncPowers powers_of(const SyncTable& table) {
  SyncPowers powers;
  for (std::size_t r = 0; r < kNumSyncRows; ++r) powers.rows[r] = power_of(table.rows[r]);
  return powers;
}

namespace {

// Every thread's writes are TMA's to read before one of its warp says so.
std::string missing_to_stage(const SyncSteps& row) {
  std::string missing = missing_to_carry(row, Past::kWrite);
  Found meet = find(row.begin(), row.end(), StepKind::kMeet);
  Found fence = find(row.begin(), meet, StepKind::kProxyFence);
  bool fenced = fence != meet && fence->by == Doers::kAll;
  return missing.empty() && !fenced ? lacks(StepKind::kProxyFence, Doers::kAll) : missing;
}

std::string missing_to_free_stored(const SyncSteps& row) {
  Found release = find(row.begin(), row.end(), StepKind::kRelease);
  if (release == row.end()) return lacks(StepKind::kRelease, Doers::kFirst, Scope::kCta);
  bool read = std::any_of(row.begin(), release, [](const SyncStep& s) {
    return s.kind == StepKind::kReadStores || s.kind == StepKind::kCompleteStores;
  });
  return read ? "" : lacks(StepKind::kReadStores, Doers::kFirst);
}

}  // namespace

std::string missing_in_pipes(const SyncTable& table) {
  SyncPowers powers = powers_of(table);
  auto lack = [](SyncRow row, const std::string& what) {
    return what.empty() ? "" : fmt::format("{} lacks {}", name(row), what);
  };
  std::string text =
      lack(SyncRow::kPipeFill, missing_to_carry(table[SyncRow::kPipeFill], Past::kWrite));
  auto add = [&](const std::string& more) {
    if (text.empty()) text = more;
  };
  add(lack(SyncRow::kPipeGet, missing_to_cover(table[SyncRow::kPipeGet], Path::kThreads)));
  add(lack(SyncRow::kPipeRelease, missing_to_carry(table[SyncRow::kPipeRelease], Past::kRead)));
  add(lack(SyncRow::kPipeClaim, missing_to_cover(table[SyncRow::kPipeClaim], Path::kThreads)));
  add(lack(SyncRow::kPipeStage, missing_to_stage(table[SyncRow::kPipeStage])));
  add(lack(SyncRow::kPipeEpilogue, missing_to_free_stored(table[SyncRow::kPipeEpilogue])));
  if (!powers[SyncRow::kPipePut].lands) {
    add(lack(SyncRow::kPipePut, describe({StepKind::kCompleteLoads})));
  }
  for (SyncRow row : {SyncRow::kPipePut, SyncRow::kPipeFill, SyncRow::kPipeStage,
                      SyncRow::kPipeRelease, SyncRow::kPipeEpilogue}) {
    if (powers[row].release < Scope::kCta) add(lack(row, "a scope of the block"));
  }
  for (SyncRow row : {SyncRow::kPipeGet, SyncRow::kPipeClaim}) {
    if (powers[row].acquire < Scope::kCta) add(lack(row, "a scope of the block"));
  }
  return text;
}

SyncRow release_row(const InstanceGraph& graph, const Sync& sync) {
  if (sync.kind == SyncKind::kFence) return SyncRow::kFence;
  if (sync.kind == SyncKind::kPacketStore) return SyncRow::kStorePacket;
  switch (graph.counters[at(sync.counter)].kind) {
    case CounterKind::kSignal:
      return SyncRow::kNotify;
    case CounterKind::kPipeFull:
      return SyncRow::kPipeFill;
    case CounterKind::kPipeEmpty:
    case CounterKind::kPipeTurn:
      return SyncRow::kPipeRelease;
    case CounterKind::kMeeting:
    case CounterKind::kBarrier:
      return SyncRow::kBarrierReach;
  }
  return SyncRow::kNotify;
}

SyncRow acquire_row(const InstanceGraph& graph, const Sync& sync) {
  if (sync.kind == SyncKind::kPacketLoad) return SyncRow::kLoadPacket;
  switch (graph.counters[at(sync.counter)].kind) {
    case CounterKind::kSignal:
      return SyncRow::kWait;
    case CounterKind::kPipeFull:
    case CounterKind::kPipeTurn:
      return SyncRow::kPipeGet;
    case CounterKind::kPipeEmpty:
      return SyncRow::kPipeClaim;
    case CounterKind::kMeeting:
    case CounterKind::kBarrier:
      return SyncRow::kBarrierPass;
  }
  return SyncRow::kWait;
}

}  // namespace stretto
