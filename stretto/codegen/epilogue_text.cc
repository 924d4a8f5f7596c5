// Pipes that agents fill from registers, and the agent that stores their slots: one thread by TMA
// where it can, else threads that load the slot like any other.
#include "stretto/codegen/agent_writer.h"

namespace stretto {

// A slot is full when every warp has fenced what it wrote (SyncRow::kPipeStage).
void AgentWriter::fill_from_registers(const Op& op) {
  const PipePlan& plan = plan_.pipes[static_cast<std::size_t>(op.symbol)];
  int g = plan.group, reg = op.operands[0];
  line("mbarrier_wait_acquire_cta(&empty{}[ring{}.slot()], ring{}.round() ^ 1);", g, g, g);
  line("fill_columns<L{}, {}>({}{{smem + {} + ring{}.slot() * {}}}, v{}, team);", reg,
       op.exprs[0].const_value(), plan.alias, plan.offset, g, plan.slot_bytes, reg);
  line("fence_proxy_async_shared();");
  line("__syncwarp();");
  line("if (team.tid % 32 == 0) mbarrier_arrive_release_cta(&full{}[ring{}.slot()]);", g, g);
  line("ring{}.next();", g);
}

void AgentWriter::epilogue_store(const Op& op, TensorMapPlan view) {
  const Region& r = *op.region;
  std::int64_t rows = values_.rows_here(type(op.operands[0]));
  std::string x = coordinate(r, r.col_dim), y = coordinate(r, view.row_dim),
              z = outer_coordinate(r, view), map = map_text(r, view);
  if (site_.role->resource.cluster_size > 1) y += fmt::format(" + cta * {}", rows);
  std::string inside = within_slot(r, view);
  if (!inside.empty()) line("if ({}) {{", inside);
  // TMA knows the end of the tensor only.
  if (r.row_end.has_value()) line("if ({} - ({}) >= {}) {{", expr(r.row_end), y, rows);
  y = row_to(r, y);
  for (std::int64_t row = 0; row < rows; row += view.box_rows) {
    line("tma_store_3d({}, s{}.data + {}, {}, {} + {}, {});", map, op.operands[0],
         row * view.swizzle_bytes, x, y, row, z);
  }
  line("tma_store_commit();");
  if (r.row_end.has_value()) {
    ValuePlan wide{.vec = 8};
    line("}} else {{");
    line("  {}store_slot<{}>(s{}, {});", unless_lost(r), run_width(r, wide), op.operands[0],
         box(r, element_text(tensor(r).dtype)));
    line("}}");
  }
  if (!inside.empty()) line("}}");
}

// What was stored has been read, not yet written (SyncRow::kPipeEpilogue).
void AgentWriter::epilogue_release(const PipePlan& plan) {
  int g = plan.group;
  line("tma_store_wait_read<0>();");
  line("mbarrier_arrive_release_cta(&empty{}[freed{}.slot()]);", g, g);
  line("freed{}.next();", g);
}

}  // namespace stretto
