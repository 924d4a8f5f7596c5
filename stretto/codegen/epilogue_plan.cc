// Where epilogue warps run: the agents that store the slots of pipes which others fill from
// registers.
#include <fmt/format.h>

#include <algorithm>

#include "stretto/codegen/expr_text.h"
#include "stretto/codegen/role_plan.h"
#include "stretto/ir/refuse.h"

namespace stretto {
namespace {

// A store of a whole slot, which is one chunk of columns, and begins within the tensor: no store
// may begin before it. One that ends at a row of the launch is a store of a whole slot but at the
// end (AgentWriter::epilogue_store).
bool by_tma(const Program& program, const Agent& agent, const Op& store, const PipePlan& slot,
            TensorMapPlan& view) {
  const Region& r = *store.region;
  bool limits = (r.row_end.has_value() && r.row_dim < 0) || r.col_end.has_value() ||
                !std::all_of(r.origin.begin(), r.origin.end(), [&](const Expr& at) {
                  return never_negative(program, at, agent.body);
                });
  if (limits || !tensor_map_of(program, r, agent.body, view)) return false;
  const Tensor& tensor = program.tensors[static_cast<std::size_t>(r.tensor)];
  view.box_cols = r.cols;
  view.box_rows = std::min(slot.rows_loaded, kMaxBoxRows);
  view.swizzle_bytes = slot.swizzle;
  auto bytes = r.cols * static_cast<std::int64_t>(size_bytes(tensor.dtype));
  return bytes == slot.swizzle && slot.rows_loaded % view.box_rows == 0;
}

// False where threads have to store some of it.
bool plan_stores(const Program& program, const Agent& agent, const Block& block,
                 std::map<int, const PipePlan*>& held, RolePlan& plan) {
  bool all = true;
  for (const Op& op : block) {
    for (const Block& body : op.bodies) all &= plan_stores(program, agent, body, held, plan);
    if (op.code == OpCode::kPipeGet) {
      held[op.result] = &plan.pipes[static_cast<std::size_t>(op.symbol)];
    }
    if (op.code != OpCode::kStore) continue;
    auto slot = held.find(op.operands[0]);
    TensorMapPlan view;
    all &= slot != held.end() && by_tma(program, agent, op, *slot->second, view);
    plan.epilogue_stores[&op] = view;
  }
  return all;
}

std::int64_t widest_product(const Agent& agent, const Block& block) {
  std::int64_t widest = 0;
  for (const Op& op : block) {
    if (op.code == OpCode::kDot || op.code == OpCode::kDotAsync) {
      widest = std::max(widest, agent.values[static_cast<std::size_t>(op.operands[0])].cols);
    }
    for (const Block& body : op.bodies) widest = std::max(widest, widest_product(agent, body));
  }
  return widest;
}

std::int64_t widest_product(const Role& role) {
  std::int64_t widest = 0;
  for (const Agent& agent : role.agents) {
    widest = std::max(widest, widest_product(agent, agent.body));
  }
  return widest;
}

}  // namespace

void place_epilogues(const Program& program, const Role& role, RolePlan& plan) {
  bool all = true;
  for (const Agent& agent : role.agents) {
    std::map<int, const PipePlan*> held;  // by register
    if (agent.kind == AgentKind::kEpilogue)
      all &= plan_stores(program, agent, agent.body, held, plan);
  }
  if (!all) plan.epilogue_stores.clear();
  auto count = static_cast<int>(role.agents.size());
  int warp = 1;
  for (int i = 0; i < count; ++i) {
    auto agent = static_cast<std::size_t>(i);
    if (!plan.stores_alone(role, i) || warp == 4) continue;
    for (int p = 0; p < count; ++p) {
      bool producer = role.agents[static_cast<std::size_t>(p)].kind == AgentKind::kProducer;
      if (!producer || plan.fills(role, p) || plan.host[agent] >= 0) continue;
      plan.host[agent] = p;
      plan.first_thread[agent] = plan.first_thread[static_cast<std::size_t>(p)] + 32 * warp++;
      plan.threads[agent] = 0;
      plan.num_threads -= 128;
    }
  }
  // A thread of four warpgroups starts with 128 registers, and the assembler takes no product that
  // needs more, whatever the warpgroup gets afterwards: 256 columns take 154 (CUDA 13.0).
  constexpr int kFourthBeyond = 384;
  constexpr std::int64_t kWidestOfFour = 200;
  for (int i = 0; i < count; ++i) {
    auto agent = static_cast<std::size_t>(i);
    if (role.agents[agent].kind != AgentKind::kEpilogue || plan.host[agent] >= 0) continue;
    if (plan.num_threads > kFourthBeyond && widest_product(role) > kWidestOfFour) {
      refuse(program, role, "store_slots", role.resource.store_slots,
             fmt::format("its stores need a warpgroup of their own, beside which products of {} "
                         "columns have no registers",
                         widest_product(role)));
    }
  }
}

}  // namespace stretto
