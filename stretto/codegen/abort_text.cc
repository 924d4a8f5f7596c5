#include "stretto/codegen/abort_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/ir/block_ops.h"
#include "stretto/ir/tables.h"

namespace stretto {
namespace {

bool makes_tables(const Program& program) {
  return std::any_of(program.tensors.begin(), program.tensors.end(), is_made_table);
}

bool waits(const Program& program) {
  return !program.signals.empty() || std::any_of(program.tensors.begin(), program.tensors.end(),
                                                 [](const Tensor& t) { return t.packet; });
}

}  // namespace

bool of_another_rank(const Region& region) {
  return region.rank.has_value() && !region.rank.same(Expr::var(0));
}

bool reaches_others(const Block& block) {
  return any_op(block, [](const Op& op) {
    switch (op.code) {
      case OpCode::kNotify:
        return true;
      case OpCode::kStore:
      case OpCode::kStoreRows:
      case OpCode::kStorePacket:
        return of_another_rank(*op.region);
      case OpCode::kCopy:
        return of_another_rank(*op.region2);
      default:
        return false;
    }
  });
}

std::vector<bool> roles_that_heed_aborts(const Program& program, const std::vector<Role>& roles) {
  std::vector<bool> heed(roles.size(), makes_tables(program));
  auto host_of = [&](std::size_t role) {
    int host = roles[role].resource.beside;
    return host >= 0 ? static_cast<std::size_t>(host) : role;
  };
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const std::vector<Agent>& agents = roles[i].agents;
    bool any = std::any_of(agents.begin(), agents.end(),
                           [](const Agent& agent) { return reaches_others(agent.body); });
    if (any) heed[host_of(i)] = true;
  }
  for (std::size_t i = 0; i < roles.size(); ++i) heed[i] = heed[host_of(i)];
  return heed;
}

std::string aborted_word_text(const Program& program, const std::vector<bool>& heeding_roles,
                              LaunchPlan& launch) {
  bool heeded = std::any_of(heeding_roles.begin(), heeding_roles.end(), [](bool h) { return h; }) ||
                reaches_others(program.on_start.body) || reaches_others(program.on_end.body);
  bool others = program.world_size > 1 || makes_tables(program);
  if (!heeded || !others || !waits(program)) return "";
  return fmt::format("reinterpret_cast<volatile u32*>(smem + {})", launch.take_shared(16));
}

std::string begin_aborted_word_text(const std::string& word) {
  return word.empty() ? ""
                      : fmt::format("  if (threadIdx.x == 0) *{} = 0;\n  __syncthreads();\n", word);
}

}  // namespace stretto
