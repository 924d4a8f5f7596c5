// Which threads of a role's blocks load, and how the registers are shared out among them.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/codegen/role_plan.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

// Registers of a block are 65536; a producer needs few, the rest goes to the consumers.
constexpr int kProducerRegisters = 24;
constexpr int kWaitingRegisters = 48;  // where it waits for signals, in loops over channels
constexpr int kFillingRegisters = 72;  // where its threads load, or store, what TMA cannot
constexpr int kCopyingRegisters = 40;  // where that is vectors alone
constexpr int kReadingRegisters = 40;  // where tables decide what TMA loads, and how often
// Of a role that adds up beside another one: in its producer's warps, or in a warpgroup more, where
// few are left for each. All of a block of two warpgroups that multiply and one that loads:
// 2 * 192 + 112 a thread of 128 (with 136 both layers of a mixture of experts spill where they
// multiply); with a fourth 2 * 176 + 56 + 104.
constexpr int kBesideRegisters = 112;
constexpr int kBesideRegistersApart = 104;
constexpr int kFillingRegistersBeside = 56;
constexpr int kRegistersOfBlock = 65536, kMostOfThread = 255;
constexpr int kMostRegisters = 240;

// Of a thread, as the launch gives them.
int launched_registers(int block) {
  return std::min(kRegistersOfBlock / block / 8 * 8, kMostOfThread);
}

bool waits(const Block& block) {
  return any_op(block, [](const Op& op) { return op.code == OpCode::kWait; });
}

bool reads_tables(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    return (op.code == OpCode::kLet && uses_table(op.exprs[0])) ||
           std::any_of(op.bodies.begin(), op.bodies.end(), reads_tables);
  });
}

// An epilogue warp's, some of which its thread makes itself.
bool ends_at_rows(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    return (op.code == OpCode::kStore && op.region->row_end.has_value()) ||
           std::any_of(op.bodies.begin(), op.bodies.end(), ends_at_rows);
  });
}

}  // namespace

bool RolePlan::fills(const Role& role, int agent) const {
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (role.pipes[i].producer == agent && !pipes[i].by_tma()) return true;
  }
  return false;
}

bool RolePlan::issues(const Role& role, int agent) const {
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (role.pipes[i].producer == agent && !pipes[i].views.empty()) return true;
  }
  return false;
}

namespace {

bool fills_vectors_alone(const RolePlan& plan, const Role& role, int agent) {
  for (std::size_t i = 0; i < plan.pipes.size(); ++i) {
    const PipePlan& pipe = plan.pipes[i];
    if (role.pipes[i].producer == agent && !pipe.by_tma() && !pipe.packed) return false;
  }
  return true;
}

// Of a producer's or epilogue warp's threads.
int few_registers(const Role& role, int agent, const RolePlan& plan) {
  const Agent& ir = role.agents[static_cast<std::size_t>(agent)];
  if (ir.kind == AgentKind::kEpilogue && !plan.stores_alone(role, agent)) return kFillingRegisters;
  bool signals = waits(ir.body);
  if (!plan.fills(role, agent)) {
    if (signals || (ir.kind == AgentKind::kEpilogue && ends_at_rows(ir.body))) {
      return kWaitingRegisters;
    }
    return reads_tables(ir.body) ? kReadingRegisters : kProducerRegisters;
  }
  return !signals && fills_vectors_alone(plan, role, agent) ? kCopyingRegisters : kFillingRegisters;
}

}  // namespace

// A warpgroup changes its registers together.
bool in_whole_warpgroups(const RolePlan& plan) {
  for (std::size_t i = 0; i < plan.threads.size(); ++i) {
    if (plan.host[i] < 0 && (plan.first_thread[i] % 128 != 0 || plan.threads[i] % 128 != 0)) {
      return false;
    }
  }
  return true;
}

void budget_registers(const Role& role, int block, RolePlan& plan, RolePlan* beside) {
  if (block <= 256 || !in_whole_warpgroups(plan)) return;
  int few = 0;  // registers of the threads that need few
  int end = plan.num_threads;
  int of_producer = 0, most_of_producer = kMostRegisters;
  if (beside != nullptr && beside->first_thread[0] < end) {
    of_producer = kBesideRegisters;  // it lies in the same warpgroup
  } else if (beside != nullptr) {
    few = (beside->num_threads - end) * kBesideRegistersApart;
    end = beside->num_threads;
    beside->registers[0] = kBesideRegistersApart;
    most_of_producer = kFillingRegistersBeside;
  }
  int computing = 0;  // threads
  for (std::size_t i = 0; i < role.agents.size(); ++i) {
    AgentKind kind = role.agents[i].kind;
    if (kind == AgentKind::kProducer || kind == AgentKind::kEpilogue) {
      plan.registers[i] = few_registers(role, static_cast<int>(i), plan);
      if (kind == AgentKind::kProducer) {
        plan.registers[i] = std::clamp(plan.registers[i], of_producer, most_of_producer);
      }
    } else {
      computing += plan.threads[i];
    }
  }
  for (std::size_t i = 0; i < role.agents.size(); ++i) {
    if (plan.host[i] < 0) continue;
    int& shared = plan.registers[static_cast<std::size_t>(plan.host[i])];
    shared = std::max(shared, plan.registers[i]);
  }
  for (std::size_t i = 0; i < role.agents.size(); ++i) few += plan.threads[i] * plan.registers[i];
  int idle = block - end;
  few += idle * kProducerRegisters;
  if (few == 0 || computing == 0) return;
  if (idle > 0) plan.idle_registers = kProducerRegisters;
  int pool = launched_registers(block) * block;
  int share = std::min((pool - few) / computing / 8 * 8, kMostRegisters);
  for (std::size_t i = 0; i < role.agents.size(); ++i) {
    if (plan.registers[i] == 0) plan.registers[i] = share;
    if (role.agents[i].num_registers != 0) plan.registers[i] = role.agents[i].num_registers;
  }
}

std::string register_budget_text(int registers, int block) {
  if (registers == 0) return "";
  bool raises = registers >= launched_registers(block);
  return fmt::format("      register_budget_{}<{}>();\n", raises ? "raise" : "lower", registers);
}

PlaceBeside place_beside(const Role& role, const RolePlan& plan) {
  PlaceBeside out{.first_thread = plan.num_threads,
                  .num_threads = 128,
                  .first_barrier = plan.first_barrier +
                                   static_cast<int>(role.agents.size() + role.barriers.size()),
                  .shared = plan.shared_bytes};
  for (std::size_t a = 0; a < role.agents.size(); ++a) {
    int agent = static_cast<int>(a);
    bool idle = plan.issues(role, agent) && !plan.fills(role, agent);
    if (role.agents[a].kind != AgentKind::kProducer || !idle) continue;
    int warps = 1 + static_cast<int>(std::count(plan.host.begin(), plan.host.end(), agent));
    out.first_thread = plan.first_thread[a] + 32 * warps;
    out.num_threads = 128 - 32 * warps;
  }
  return out;
}

}  // namespace stretto
