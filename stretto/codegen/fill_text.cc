// Pipes of a producer whose threads fill slots that TMA cannot load: picked rows, vectors, rows of
// an odd size. They copy asynchronously. What TMA can load, a thread of another warp issues, which
// goes through the program by itself. Both may fill slots of one ring.
#include "stretto/codegen/agent_writer.h"
#include "stretto/codegen/joined_steps.h"

namespace stretto {

// Elements that are copied at once.
int AgentWriter::fill_width(const Region& r) const {
  int run = run_width(r, ValuePlan{.vec = 16});
  while (r.cols % run != 0) run /= 2;
  return run;
}

void AgentWriter::fill(const Op& op) {
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(plan.group)];
  if (group.steps > 1) return fill_joined(op, plan);
  const Region& r = *op.region;
  int g = plan.group, run = fill_width(r);
  if (group.pipes.front() == op.symbol) {
    line("mbarrier_wait_acquire_cta(&empty{}[ring{}.slot()], ring{}.round() ^ 1);", g, g, g);
  }
  line("// by threads: {}", plan.why);
  fill_one(op, plan, fmt::format("ring{}.slot()", g));
  if (group.pipes.back() != op.symbol) return;
  // Copies of less than 4 bytes are loads and stores.
  bool copies = static_cast<std::size_t>(run) * size_bytes(tensor(r).dtype) >= 4;
  line("mbarrier_arrive_{}(&full{}[ring{}.slot()]);", copies ? "after_copies" : "release_cta", g,
       g);
  line("ring{}.next();", g);
}

// One slot, whose number is `at`.
void AgentWriter::fill_one(const Op& op, const PipePlan& plan, const std::string& at) {
  const Region& r = *op.region;
  int run = fill_width(r);
  const Expr& width = tensor(r).shape[static_cast<std::size_t>(r.col_dim)];
  bool whole = !r.col_end.has_value() && width.is_const() && width.const_value() % run == 0;
  std::string slot =
      fmt::format("{}{{smem + {} + ({}) * {}}}", plan.alias, plan.offset, at, plan.slot_bytes);
  bool picked = !op.operands.empty();
  std::string from = box(r, std::string("const ") + element_text(tensor(r).dtype), picked);
  if (picked) {
    line("fill_rows<L{}, {}, {}>({}, v{}, {}, team);", op.operands[0], run, whole, slot,
         op.operands[0], from);
  } else {
    line("fill_slot<{}, {}, {}>({}, {}, team);", run, whole, values_.num_threads, slot, from);
  }
}

// The slots of several steps with the first of them (joined_steps.h).
void AgentWriter::fill_joined(const Op& op, const PipePlan& plan) {
  int g = plan.group;
  const PipeGroup& group = plan_.groups[static_cast<std::size_t>(g)];
  Region r = *op.region;
  std::string step = var_text(program_, loop_around(agent_.body, op)->var);
  if (group.pipes.front() == op.symbol) {
    line("if ({} % {} == 0) {{", step, group.steps);
    line("  mbarrier_wait_acquire_cta(&empty{}[ring{}.slot() + {}], ring{}.round() ^ 1);", g, g,
         group.steps - 1, g);
  }
  ++depth_;
  line("// by threads: {}", plan.why);
  if (plan.joined) {
    r.cols = group.steps;
    line(
        "fill_slot<{}, true, {}>(SmemVector<{}, {}, {}>{{smem + {} + ring{}.slot() / {} * {}}}, "
        "{}, team);",
        group.steps, values_.num_threads, element_text(tensor(r).dtype), plan.rows, group.steps,
        plan.offset, g, group.steps, plan.slot_bytes,
        box(r, std::string("const ") + element_text(tensor(r).dtype)));
  } else {
    line("for (int first = {}, u = 0; u < {}; ++u) {{", step, group.steps);
    line("  const int {} = first + u;", step);
    ++depth_;
    fill_one(op, plan, fmt::format("ring{}.slot() + u", g));
    --depth_;
    line("}}");
  }
  --depth_;
  if (group.pipes.back() != op.symbol) return;
  line("  mbarrier_arrive_after_copies(&full{}[ring{}.slot()]);", g, g);
  line("}}");
  line("ring{}.next();", g);
}

// A slot that others of the producer fill. Of a ring that is filled in both ways all arrive at
// every slot, so that nobody is a round behind: it would wait for a phase that went by. Such a pipe
// is a group of its own.
void AgentWriter::leave_to_others(const PipePlan& plan) {
  if (!plan.in_turn()) return;
  int g = plan.group;
  line("mbarrier_wait_acquire_cta(&empty{}[ring{}.slot()], ring{}.round() ^ 1);", g, g, g);
  if (alone()) {
    line("// by threads");
    line("mbarrier_arrive_release_cta(&full{}[ring{}.slot()]);", g, g);
  } else {
    line("// by TMA");
    line("__syncwarp();");
    line("if (team.tid % 32 == 0) mbarrier_arrive_warp_release_cta(&full{}[ring{}.slot()]);", g, g);
  }
  line("ring{}.next();", g);
}

}  // namespace stretto
