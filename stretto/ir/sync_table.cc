#include "stretto/ir/sync_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {
namespace {

using enum StepKind;
using enum Doers;

SyncTable make_table() {
  SyncTable table;
  // What a producer's threads copy asynchronously is read before any of this, and before they reach
  // a barrier (AgentWriter::settle_copies): it stands for reads by threads.
  table[SyncRow::kNotify] = {{kCompleteStores, kIssuers}, {kMeet}, {kRelease, kFirst, Scope::kSys}};
  // The proxy fence is every thread's, since any of them may issue what follows.
  table[SyncRow::kWait] = {{kAcquire, kFirst, Scope::kSys}, {kMeet}, {kProxyFence, kAll}};
  table[SyncRow::kFence] = {
      {kCompleteStores, kIssuers}, {kFence, kAll, Scope::kGpu}, {kProxyFence, kAll}, {kMeet}};
  // mbarriers. A put carries the loads that fill its slot, a release the reads of each warp;
  // neither carries what the agent wrote elsewhere.
  table[SyncRow::kPipePut] = {{kRelease, kFirst, Scope::kCta}, {kCompleteLoads, kFirst}};
  table[SyncRow::kPipeFill] = {{kRelease, kAll, Scope::kCta}};
  table[SyncRow::kPipeStage] = {{kProxyFence, kAll}, {kMeet}, {kRelease, kWarps, Scope::kCta}};
  table[SyncRow::kPipeEpilogue] = {{kReadStores, kFirst}, {kRelease, kFirst, Scope::kCta}};
  table[SyncRow::kPipeGet] = {{kAcquire, kAll, Scope::kCta}};
  table[SyncRow::kPipeRelease] = {{kRelease, kWarps, Scope::kCta}};
  table[SyncRow::kPipeClaim] = {{kAcquire, kAll, Scope::kCta}};
  table[SyncRow::kBarrierReach] = {{kRelease, kAll, Scope::kCta}};
  table[SyncRow::kBarrierPass] = {{kAcquire, kAll, Scope::kCta}};
  table[SyncRow::kStorePacket] = {{kRelease, kEach, Scope::kSys}};
  table[SyncRow::kLoadPacket] = {{kAcquire, kEach, Scope::kSys}};
  // Fences around a relaxed word.
  table[SyncRow::kStartDone] = {{kMeet},
                                {kRelease, kFirst, Scope::kGpu},
                                {kAcquire, kFirst, Scope::kGpu},
                                {kMeet},
                                {kProxyFence, kAll}};
  table[SyncRow::kRolesDone] = {{kCompleteStores, kIssuers},
                                {kMeet},
                                {kRelease, kFirst, Scope::kGpu},
                                {kAcquire, kFirst, Scope::kGpu},
                                {kMeet}};
  return table;
}

const char* scope_text(Scope scope) {
  switch (scope) {
    case Scope::kThread:
      return "thread";
    case Scope::kCta:
      return "cta";
    case Scope::kGpu:
      return "gpu";
    case Scope::kSys:
      return "sys";
  }
  return "?";
}

bool has_dot(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    bool dot = op.code == OpCode::kDot || op.code == OpCode::kDotAsync;
    return dot || std::any_of(op.bodies.begin(), op.bodies.end(), has_dot);
  });
}

}  // namespace

const SyncTable& sync_table() {
  static const SyncTable table = make_table();
  return table;
}

const char* name(SyncRow row) {
  static constexpr std::array<const char*, kNumSyncRows> names = {
      "notify",        "wait",        "worker_fence",    "pipe put",
      "pipe fill",     "pipe stage",  "pipe get",        "pipe release",
      "pipe epilogue", "pipe claim",  "barrier arrive",  "barrier wait",
      "packet store",  "packet load", "end of on_start", "end of the roles"};
  return names[static_cast<std::size_t>(row)];
}

std::string describe(const SyncStep& step) {
  static constexpr std::array<const char*, 5> doers = {" by one thread", " by every issuing thread",
                                                       " by every warp", " by every thread",
                                                       " by each thread on its own"};
  const char* by = doers[static_cast<std::size_t>(step.by)];
  switch (step.kind) {
    case kCompleteStores:
      return fmt::format("completion of bulk stores{}", by);
    case kReadStores:
      return fmt::format("reading out of bulk stores{}", by);
    case kCompleteLoads:
      return "completion of bulk loads";
    case kMeet:
      return "barrier of the threads";
    case kFence:
      return fmt::format("fence.acq_rel.{}{}", scope_text(step.scope), by);
    case kRelease:
      return fmt::format("release.{}{}", scope_text(step.scope), by);
    case kAcquire:
      return fmt::format("acquire.{}{}", scope_text(step.scope), by);
    case kProxyFence:
      return fmt::format("fence.proxy.async{}", by);
  }
  return "?";
}

bool may_load_in_bulk(const Program& program, const Op& put) {
  const Region& r = *put.region;
  const Tensor& t = program.tensors[static_cast<std::size_t>(r.tensor)];
  bool own = !r.rank.has_value() || r.rank.same(Expr::var(0));
  return own && put.operands.empty() && t.num_slots == 1 && !t.packet && t.shape.size() <= 3;
}

// Bulk stores start from the fragments that products leave, or from slots.
bool may_store_in_bulk(const Program& program, const Agent& agent, const Op& store) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(store.region->tensor)];
  bool starts = agent.kind == AgentKind::kEpilogue || has_dot(agent.body);
  return size_bytes(t.dtype) == 2 && !t.packet && starts;
}

}  // namespace stretto
