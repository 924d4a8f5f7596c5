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

const Role* role_of(const InstanceGraph& graph, const AccessRef& ref) {
  int role = graph.agents[static_cast<std::size_t>(ref.agent)].role;
  return role < 0 ? nullptr : &graph.program->roles[static_cast<std::size_t>(role)];
}

const Agent& agent_of(const InstanceGraph& graph, const AccessRef& ref) {
  const AgentTrace& trace = graph.agents[static_cast<std::size_t>(ref.agent)];
  if (trace.phase == Phase::kStart) return graph.program->on_start;
  if (trace.phase == Phase::kEnd) return graph.program->on_end;
  return role_of(graph, ref)->agents[static_cast<std::size_t>(trace.agent)];
}

// Loads and stores of registers; -1 for what else there is.
int register_of(const Op& op) {
  if (op.code == OpCode::kLoad) return op.result;
  return op.code == OpCode::kStore || op.code == OpCode::kReduceStore ? op.operands[0] : -1;
}

// Source and destination.
bool of_one_copy(const AccessRef& first, const AccessRef& second) {
  return first.access->op == second.access->op && first.access->op->code == OpCode::kCopy &&
         second.idx == first.idx + 1;
}

// At a notify or wait. Blocks of a cluster do not meet, nor need the agents of a role that is
// split: one may leave a wait to the other, and warpgroups may be apart.
bool threads_met(const InstanceGraph& graph, const SyncTable& table, const AccessRef& first,
                 const AccessRef& second) {
  const Role* role = role_of(graph, first);
  bool may_meet = role != nullptr && role->resource.kind == ResourceKind::kSm &&
                  role->resource.cluster_size == 1 && role->agents.size() == 1;
  if (!may_meet || second.access->kind != AccessKind::kWrite) return false;
  const auto& syncs = graph.agents[static_cast<std::size_t>(first.agent)].syncs;
  return std::any_of(
      syncs.begin() + first.access->pos, syncs.begin() + second.access->pos, [&](const Sync& s) {
        bool notifies = s.kind == SyncKind::kNotify;
        if ((!notifies && s.kind != SyncKind::kWait) || s.choice != TableChoices::kAlways)
          return false;
        return notifies ? missing_to_carry(table[SyncRow::kNotify], Past::kRead).empty()
                        : missing_to_cover(table[SyncRow::kWait], Path::kThreads).empty();
      });
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
  it->second = op.code == OpCode::kPipePut ? may_load_in_bulk(program, op)
                                           : may_store_in_bulk(program, agent_of(graph, ref), op);
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

int AccessPaths::dealt_out(const InstanceGraph& graph, const AccessRef& ref) {
  return ref.access->tiled ? layout_of(graph, ref) : kAnyThread;
}

int AccessPaths::layout_of(const InstanceGraph& graph, const AccessRef& ref) {
  const Op& op = *ref.access->op;
  auto [it, is_new] = layouts_.try_emplace(&op, kAnyThread);
  int reg = register_of(op);
  if (!is_new || reg < 0) return it->second;
  const Agent& agent = agent_of(graph, ref);
  const Role* role = role_of(graph, ref);
  auto plan = plans_.find(&agent);
  if (plan == plans_.end()) {
    int cluster = role == nullptr ? 1 : role->resource.cluster_size;
    plan = plans_.emplace(&agent, plan_values(agent, cluster)).first;
  }
  auto at = static_cast<std::size_t>(reg);
  const ValueType& type = agent.values[at];
  const ValuePlan& value = plan->second.values[at];
  // All that have a copy load it, one of them stores; of a cluster's blocks one in each.
  bool in_blocks = plan->second.cluster > 1 && type.rows == 1;
  bool in_warps = op.code == OpCode::kLoad && plan->second.copied_in_warps(type, value);
  if (in_blocks || in_warps) return it->second;
  std::string text = fmt::format("{} {} {}", plan->second.layout_text(type, value),
                                 op.region->row_dim, op.region->col_dim);
  it->second = layout_numbers_.try_emplace(text, layout_numbers_.size()).first->second;
  return it->second;
}

bool AccessPaths::keep_turn(const InstanceGraph& graph, const AccessRef& first,
                            const AccessRef& second) {
  if (second.access->packet) return true;
  bool reads = first.access->kind == AccessKind::kRead;
  const Role* role = role_of(graph, first);
  if (role != nullptr && role->resource.kind != ResourceKind::kSm) {
    return (reads && !of_one_copy(first, second)) ||
           (!reads && second.access->kind == AccessKind::kWrite);
  }
  bool own_order = reads || (second.access->kind == AccessKind::kWrite && !bulk(graph, first) &&
                             !bulk(graph, second));
  // No two of the rows that values choose are the same, of one such store or of several.
  bool by_values =
      first.access->op->code == OpCode::kStoreRows && second.access->op->code == OpCode::kStoreRows;
  if (by_values) return true;
  int layout = own_order ? dealt_out(graph, first) : kAnyThread;
  return layout != kAnyThread && first.access->box == second.access->box &&
         layout == dealt_out(graph, second);
}

bool AccessPaths::in_turn(const InstanceGraph& graph, const SyncTable& table,
                          const AccessRef& first, const AccessRef& second) {
  if (keep_turn(graph, first, second)) return true;
  return !bulk(graph, first) && !bulk(graph, second) && threads_met(graph, table, first, second);
}

std::string AccessPaths::why_out_of_turn(const InstanceGraph& graph, const AccessRef& first,
                                         const AccessRef& second) {
  if (of_one_copy(first, second)) return "a copy onto itself, which has no order";
  if (in_cluster(graph, first)) {
    return "the worker is a cluster of blocks, and worker_fence ends at the block: it needs notify "
           "and wait between";
  }
  if (first.access->kind == AccessKind::kRead) {
    return "threads of the worker may write before others of its threads have read: it needs "
           "worker_fence between";
  }
  if (second.access->kind != AccessKind::kWrite) {
    return "the worker reads what it wrote without worker_fence or notify and wait between";
  }
  if (bulk(graph, first) || bulk(graph, second)) {
    return "the worker writes again what TMA may still write, without worker_fence between";
  }
  return "threads of the worker may write after others of its threads have written again: it "
         "needs worker_fence between";
}

bool of_one_ticket_role(const InstanceGraph& graph, const AccessRef& x, const AccessRef& y) {
  const AgentTrace &a = graph.agents[static_cast<std::size_t>(x.agent)],
                   &b = graph.agents[static_cast<std::size_t>(y.agent)];
  return a.role >= 0 && a.role == b.role && a.rank == b.rank && role_of(graph, x)->resource.tickets;
}

bool in_cluster(const InstanceGraph& graph, const AccessRef& ref) {
  const Role* role = role_of(graph, ref);
  return role != nullptr && role->resource.cluster_size > 1;
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
