// Pipes of a producer whose threads fill slots that TMA cannot load. All its threads go through the
// program together; the first of them issues what TMA can.
#include "stretto/codegen/agent_writer.h"

namespace stretto {

void AgentWriter::put_by_threads(const Op& op) {
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(plan.group)];
  bool first = group.pipes.front() == op.symbol, last = group.pipes.back() == op.symbol;
  int g = plan.group;
  if (first)
    line("mbarrier_wait_acquire_cta(&empty{}[ring{}.slot()], ring{}.round() ^ 1);", g, g, g);
  if (plan.by_tma()) {
    line("if (team.tid == 0) {{");
    ++depth_;
    std::size_t bytes = 0;
    for (int p : group.pipes) bytes += plan_.pipes[static_cast<std::size_t>(p)].bytes_arriving;
    if (first) line("mbarrier_arrive_expect_tx(&full{}[ring{}.slot()], {});", g, g, bytes);
    put(op, plan);
    --depth_;
    line("}}");
  } else {
    const Region& r = *op.region;
    ValuePlan widest{.vec = 16};
    line("// by plain loads: {}", plan.why);
    line("fill_slot<{}>({}{{smem + {} + ring{}.slot() * {}}}, {}, team, {});", run_width(r, widest),
         plan.alias, plan.offset, g, plan.slot_bytes,
         box(r, std::string("const ") + element_text(tensor(r).dtype)), values_.num_threads);
    if (last) {
      line("fence_proxy_async_shared();");
      line("named_barrier_sync(team.barrier, {});", values_.num_threads);
      line("if (team.tid == 0) mbarrier_arrive_release_cta(&full{}[ring{}.slot()]);", g, g);
    }
  }
  if (last) line("ring{}.next();", g);
}

}  // namespace stretto
