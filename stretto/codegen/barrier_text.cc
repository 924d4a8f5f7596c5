#include "stretto/codegen/barrier_text.h"

#include <fmt/format.h>

namespace stretto {

std::string barrier_setup_text(const Role& role, const RolePlan& plan) {
  std::string out;
  if (plan.ones != 0) {
    out += fmt::format("    fill_ones<{}>(smem + {}, {}, int(threadIdx.x), int(blockDim.x));\n",
                       plan.ones_dtype == DType::kF16 ? "f16" : "bf16", plan.ones, kOnesBytes);
  }
  if (plan.groups.empty() && !role.resource.tickets) {
    return out.empty() ? out : out + "    __syncthreads();\n";
  }
  out += "    if (threadIdx.x == 0) {\n";
  if (role.resource.tickets) {
    int warps = 0;
    for (std::size_t a = 0; a < role.agents.size(); ++a) {
      bool issues_alone =
          role.agents[a].kind == AgentKind::kProducer && !plan.fills(role, static_cast<int>(a));
      if (!issues_alone) warps += plan.agents[a].num_threads / 32;
    }
    out += fmt::format("      ticket_ring_init(smem + {}, {});\n", plan.ticket_ring, warps);
  }
  if (plan.meeting != 0) {
    out += fmt::format("      *reinterpret_cast<uint4*>(smem + {}) = uint4{{}};\n", plan.meeting);
  }
  for (const PipeGroup& g : plan.groups) {
    if (g.shares >= 0) continue;
    const Pipe& pipe = role.pipes[static_cast<std::size_t>(g.pipes[0])];
    int warps = plan.agents[static_cast<std::size_t>(pipe.consumer)].num_threads / 32;
    if (plan.stores_alone(role, pipe.consumer)) warps = 1;
    // Threads that load into a slot arrive each for itself, those that fill it warp by warp, and
    // only in their own block. Where TMA fills some slots, the thread that issues arrives at all.
    const PipePlan& first = plan.pipes[static_cast<std::size_t>(g.pipes[0])];
    bool tma = first.by_tma();
    int fillers = plan.agents[static_cast<std::size_t>(pipe.producer)].num_threads;
    if (first.filled) fillers /= 32;
    if (first.in_turn()) ++fillers;
    out += fmt::format(
        "      for (int i = 0; i < {}; ++i) {{\n        u64* bar = reinterpret_cast<u64*>(smem + "
        "{}) + i;\n        mbarrier_init(bar, {});\n        mbarrier_init(bar + {}, {});\n      "
        "}}\n",
        g.num_slots, g.barriers, tma ? 1 : fillers, g.num_slots,
        tma ? warps * role.resource.cluster_size : warps);
    if (g.is_shared()) {
      out += fmt::format(
          "      {{\n        u64* turn = reinterpret_cast<u64*>(smem + {});\n"
          "        for (int i = 0; i < {}; ++i) mbarrier_init(turn + i, {});\n"
          "        turn[{}] = 0;  // where the first begins\n      }}\n",
          g.barriers + std::size_t{16} * static_cast<std::size_t>(g.num_slots), g.turn.num_turns,
          warps, g.turn.num_turns);
    }
  }
  out += "      mbarrier_init_fence_cluster();\n    }\n";
  out += role.resource.cluster_size > 1
             ? "    cluster_arrive_release();\n    cluster_wait_acquire();\n"
             : "    __syncthreads();\n";
  return out;
}

}  // namespace stretto
