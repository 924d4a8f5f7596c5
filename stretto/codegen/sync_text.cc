// Signals, fences and named barriers.
#include "stretto/base/errors.h"
#include "stretto/codegen/agent_writer.h"

namespace stretto {

int AgentWriter::sync_site(const Op& op) {
  kernel_.launch.sites.push_back(
      {.role = site_.role_idx, .signal = op.symbol, .file = op.loc.file, .line = op.loc.line});
  return static_cast<int>(kernel_.launch.sites.size()) - 1;
}

void AgentWriter::sync(const Op& op) {
  bool alone = producer();  // one thread works
  auto meet = [&] {
    if (!alone) line("named_barrier_sync(team.barrier, {});", values_.num_threads);
  };
  std::string first = alone ? "true" : "team.tid == 0";
  switch (op.code) {
    case OpCode::kNotify: {
      if (alone) line("tma_store_wait<0>();");
      if (!alone) line("if (team.tid % 128 == 0) tma_store_wait<0>();");
      meet();
      line("if ({}) {{", first);
      line("  fence_acq_rel_sys();");
      line("  add_release_sys(p.signals[{}] + {} + {}, {});", expr(op.exprs[1]),
           kernel_.launch.signal_offsets[static_cast<std::size_t>(op.symbol)], expr(op.exprs[0]),
           expr(op.exprs[2]));
      line("}}");
      return;
    }
    case OpCode::kWait: {
      int site = sync_site(op);
      line("if ({}) {{", first);
      line("  const i64 counter = {} + {};",
           kernel_.launch.signal_offsets[static_cast<std::size_t>(op.symbol)], expr(op.exprs[0]));
      line(
          "  wait_acquire_sys(p.signals[rank] + counter, epoch * p.quotas[counter] + u64({}), "
          "p.watch, {}, counter);",
          expr(op.exprs[1]), site);
      line("}}");
      meet();
      line("fence_proxy_async_global();");
      return;
    }
    case OpCode::kFence:
      if (!alone) line("if (team.tid % 128 == 0) tma_store_wait<0>();");
      line("fence_acq_rel_gpu();");
      line("fence_proxy_async_global();");
      meet();
      return;
    default:
      throw UserError(
          fmt::format("{}:{}: named barriers have no GPU lowering yet", op.loc.file, op.loc.line));
  }
}

}  // namespace stretto
