#include "stretto/codegen/role_limits.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

class RoleLimits {
 public:
  RoleLimits(const Role& role, std::size_t agent, const AgentPlan& plan)
      : role_(role), agent_(role.agents[agent]), plan_(plan) {}

  void check() const {
    refuse_large();
    if (role_.resource.cluster_size == 1) return;
    for_each_op(agent_.body, [&](const Op& op) { across_blocks(op); });
  }

 private:
  [[noreturn]] void fail(SourceLoc loc, const std::string& what) const {
    if (loc.file.empty()) loc = role_.loc;
    throw UserError(
        fmt::format("{}:{}: role '{}' on the GPU: {}", loc.file, loc.line, role_.name, what));
  }
  const ValueType& type(int reg) const { return agent_.values[static_cast<std::size_t>(reg)]; }
  const ValuePlan& value(int reg) const { return plan_.values[static_cast<std::size_t>(reg)]; }

  // The compiler writes out every element that a thread has of a value, which takes it minutes
  // where they are four times as many as there are registers.
  void refuse_large() const {
    constexpr std::int64_t kMost = 1024;
    for (std::size_t i = 0; i < plan_.values.size(); ++i) {
      const ValueType& type = agent_.values[i];
      const ValuePlan& value = plan_.values[i];
      if (!value.used_elsewhere) continue;
      std::int64_t rows = plan_.row_slots(type, value),
                   elements = rows * plan_.col_slots(type, value);
      if (elements <= kMost) continue;
      fail(
          role_.loc,
          fmt::format("{}[{}, {}] is {} elements for each of {} threads, which have 255 registers; "
                      "smaller tiles fit",
                      short_name(type.dtype), type.rows, type.cols, elements, plan_.num_threads));
    }
  }

  // A block of a cluster has its share of the rows, and sees those of no other.
  void across_blocks(const Op& op) const {
    int cluster = role_.resource.cluster_size;
    auto shared_out = [&](std::int64_t rows) {
      if (rows <= 1 || rows % cluster == 0) return;
      fail(op.loc,
           fmt::format("{} rows are no multiple of the {} blocks of a cluster", rows, cluster));
    };
    if (op.result >= 0) shared_out(type(op.result).rows);
    for (int reg : op.operands) shared_out(type(reg).rows);
    for (const std::optional<Region>* region : {&op.region, &op.region2}) {
      if (region->has_value()) shared_out((*region)->rows);
    }
    if (op.code == OpCode::kReduce && op.axis == 0 && type(op.operands[0]).rows > 1) {
      fail(op.loc, "a reduction over rows that the blocks of a cluster share out");
    }
    if (op.code == OpCode::kTranspose) {
      bool stays = value(op.result).from_slot && !value(op.result).used_elsewhere;
      bool crosses = type(op.result).rows > 1 || type(op.operands[0]).rows > 1;
      if (crosses && !stays) {
        fail(op.loc, "a transposition of rows that the blocks of a cluster share out");
      }
    }
    if (dot_kind(agent_, op) != DotKind::kNone && !value(op.operands[2]).from_slot &&
        type(op.operands[2]).rows > 1) {
      fail(op.loc,
           "a product whose right factor the blocks of a cluster share out, since it is computed");
    }
  }

  const Role& role_;
  const Agent& agent_;
  const AgentPlan& plan_;
};

}  // namespace

void refuse_beyond_threads(const Role& role, const RolePlan& plan) {
  for (std::size_t a = 0; a < role.agents.size(); ++a) {
    RoleLimits(role, a, plan.agents[a]).check();
  }
}

}  // namespace stretto
