// Pipes of a producer whose threads fill slots that TMA cannot load: picked rows, vectors, rows of
// an odd size. All its threads go through the program together and copy asynchronously; the first
// of them issues what TMA can.
#include <algorithm>

#include "stretto/codegen/agent_writer.h"

namespace stretto {

void AgentWriter::put_by_threads(const Op& op) {
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(plan.group)];
  bool first = group.pipes.front() == op.symbol, last = group.pipes.back() == op.symbol;
  int g = plan.group;
  int cluster = plan.by_tma() ? site_.role->resource.cluster_size : 1;
  std::string claim = fmt::format("mbarrier_wait_{}(&empty{}[ring{}.slot()], ring{}.round() ^ 1);",
                                  cluster > 1 ? "relaxed_cluster" : "acquire_cta", g, g, g);
  if (plan.by_tma()) {
    // The others would not notice where the first is several rounds ahead of them.
    line("if (team.tid == 0) {{");
    ++depth_;
    if (first) {
      line("{}", claim);
      line("mbarrier_arrive_expect_tx(&full{}[ring{}.slot()], {});", g, g, bytes_of_slot(group));
    }
    put(op, plan);
    --depth_;
    line("}}");
  } else {
    line("{}", claim);
    fill(op, plan);
  }
  if (last) line("ring{}.next();", g);
}

// A slot that one pipe fills.
void AgentWriter::fill(const Op& op, const PipePlan& plan) {
  const Region& r = *op.region;
  int g = plan.group;
  bool picked = !op.operands.empty();
  ValuePlan widest{.vec = 16};
  int run = run_width(r, widest);
  while (r.cols % run != 0) run /= 2;
  std::string slot = fmt::format("{}{{smem + {} + ring{}.slot() * {}}}", plan.alias, plan.offset, g,
                                 plan.slot_bytes);
  std::string from = box(r, std::string("const ") + element_text(tensor(r).dtype), picked);
  line("// by threads: {}", plan.why);
  if (picked) {
    line("fill_rows<L{}, {}>({}, v{}, {}, team);", op.operands[0], run, slot, op.operands[0], from);
  } else {
    line("fill_slot<{}>({}, {}, team, {});", run, slot, from, values_.num_threads);
  }
  // Copies of less than 4 bytes are loads and stores.
  bool copies = static_cast<std::size_t>(run) * size_bytes(tensor(r).dtype) >= 4;
  line("mbarrier_arrive_{}(&full{}[ring{}.slot()]);", copies ? "after_copies" : "release_cta", g,
       g);
}

}  // namespace stretto
