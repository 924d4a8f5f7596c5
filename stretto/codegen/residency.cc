#include "stretto/codegen/residency.h"

#include <algorithm>
#include <set>

#include "stretto/ir/block_ops.h"

namespace stretto {
bool needs_all_resident(const Program& schedule, int most_waiting) {
  if (schedule.signals.empty()) return false;
  if (!schedule.on_start.body.empty() || !schedule.on_end.body.empty()) return true;
  std::set<int> of_waiting_roles;  // signals
  int waiting_blocks = 0;
  bool other = false;
  std::set<int> waited;
  for (const Role& role : schedule.roles) {
    other |= role.resource.kind != ResourceKind::kSm || role.resource.cluster_size > 1;
    bool waits = false;
    std::set<int> notified;
    auto look = [&](const Op& op) {
      if (op.code == OpCode::kWait) waited.insert(op.symbol);
      waits |= op.code == OpCode::kWait;
      other |= op.code == OpCode::kLoadPacket;
      if (op.code != OpCode::kNotify) return;
      notified.insert(op.symbol);
      other |= !op.exprs[1].same(Expr::var(0));  // a rank other than the own
    };
    for (const Agent& agent : role.agents) for_each_op(agent.body, look);
    if (!waits) continue;
    waiting_blocks += role.resource.num_workers;
    of_waiting_roles.insert(notified.begin(), notified.end());
  }
  bool chained = std::any_of(waited.begin(), waited.end(),
                             [&](int signal) { return of_waiting_roles.contains(signal); });
  return other || chained || waiting_blocks > most_waiting;
}

}  // namespace stretto
