#include "stretto/proof/access_paths.h"

#include <fmt/format.h>

#include <algorithm>

namespace stretto {
namespace {

const char* name(Past past) {
  switch (past) {
    case Past::kOrder:
      return "a packet";
    case Past::kRead:
      return "a read by threads";
    case Past::kWrite:
      return "a write by threads";
    case Past::kBulkStore:
      return "a store by TMA";
    case Past::kBulkLoad:
      return "a load by TMA";
  }
  return "?";
}

// The first step that the row lacks.
std::string missing_step(const SyncSteps& row, Past past, Path path) {
  bool releases = false, acquires = false;
  for (const SyncStep& s : row) {
    releases |= s.kind == StepKind::kRelease;
    acquires |= s.kind == StepKind::kAcquire;
  }
  bool fence = !releases && !acquires;
  std::string missing;
  if (past == Past::kBulkLoad) {
    bool lands = row.end() != std::find_if(row.begin(), row.end(), [](const SyncStep& s) {
                   return s.kind == StepKind::kCompleteLoads;
                 });
    if (releases && !lands) return describe({StepKind::kCompleteLoads});
  } else if (releases || fence) {
    missing = missing_to_carry(row, past);
  }
  if (missing.empty() && (acquires || fence)) missing = missing_to_cover(row, path);
  return missing.empty() ? "a wider scope" : missing;
}

}  // namespace

bool AccessPaths::bulk(const InstanceGraph& graph, const AccessRef& ref) {
  const Op& op = *ref.access->op;
  bool may_be =
      op.code == OpCode::kPipePut || op.code == OpCode::kStore || op.code == OpCode::kReduceStore;
  if (!may_be) return false;
  auto [it, is_new] = bulk_.try_emplace(&op, false);
  if (!is_new) return it->second;
  const Program& program = *graph.program;
  const AgentTrace& trace = graph.agents[static_cast<std::size_t>(ref.agent)];
  const Agent* agent = trace.phase == Phase::kStart ? &program.on_start : &program.on_end;
  if (trace.phase == Phase::kRoles) {
    agent = &program.roles[static_cast<std::size_t>(trace.role)]
                 .agents[static_cast<std::size_t>(trace.agent)];
  }
  it->second = op.code == OpCode::kPipePut ? may_load_in_bulk(program, op)
                                           : may_store_in_bulk(program, *agent, op);
  return it->second;
}

Ways<Past> AccessPaths::pasts(const InstanceGraph& graph, const AccessRef& ref) {
  const Access& a = *ref.access;
  bool read = a.kind == AccessKind::kRead;
  if (a.packet && !read) return Past::kOrder;
  Ways<Past> out = read ? Past::kRead : Past::kWrite;
  if (bulk(graph, ref)) out.add(read ? Past::kBulkLoad : Past::kBulkStore);
  return out;
}

Ways<Path> AccessPaths::paths(const InstanceGraph& graph, const AccessRef& ref) {
  Ways<Path> out = Path::kThreads;
  if (bulk(graph, ref)) out.add(Path::kBulk);
  return out;
}

bool AccessPaths::keep_turn(const InstanceGraph& graph, const AccessRef& first,
                            const AccessRef& second) {
  if (first.access->kind == AccessKind::kRead || second.access->packet) return true;
  return second.access->kind == AccessKind::kWrite && !bulk(graph, first) && !bulk(graph, second);
}

bool has_fence(const AgentTrace& trace, const AccessRef& first, const AccessRef& second) {
  return std::any_of(trace.syncs.begin() + first.access->pos,
                     trace.syncs.begin() + second.access->pos,
                     [](const Sync& s) { return s.kind == SyncKind::kFence; });
}

std::string missing_steps(const HappensBefore& order, const SyncTable& table, Past past, Path path,
                          const HappensBefore::Holds& holds) {
  std::string text;
  for (SyncRow row : order.missing_rows(holds)) {
    text += fmt::format("{}{} lacks {}", text.empty() ? "" : ", or ", name(row),
                        missing_step(table[row], past, path));
  }
  if (text.empty()) return "";
  return fmt::format("{} is not over for what comes after{}: {}", name(past),
                     path == Path::kBulk ? " by TMA" : "", text);
}

}  // namespace stretto
