// What an agent keeps from one tile to the next, each a round trip to memory: that it has waited
// for something, and entries of tables that the launch makes.
#include <algorithm>

#include "stretto/codegen/agent_writer.h"
#include "stretto/codegen/table_text.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/tables.h"

namespace stretto {
namespace {

// The entry that is read, of a table of the launch's making and the same in every tile; or null.
// It is stored at most once, so that it has one value for whoever may read it.
const ExprNode* constant_entry(const Program& program, const Op& op) {
  if (op.code != OpCode::kLet) return nullptr;
  const ExprNode& n = op.exprs[0].node();
  if (n.op != ExprOp::kTable) return nullptr;
  const Tensor& table = program.tensors[static_cast<std::size_t>(n.value)];
  auto constant = [](const Expr& index) { return index.is_const(); };
  return is_made_table(table) && std::all_of(n.args.begin(), n.args.end(), constant) ? &n : nullptr;
}

}  // namespace

// A thread that issues loads for tile after tile comes to the same waits again. What it has waited
// for it need not look at any more, a round trip to memory during which it loads nothing.
void AgentWriter::declare_passed_waits() {
  const std::int64_t counters = kernel_.launch.num_counters;
  if (counters > 64 || site_.rings) return;
  // Most roles wait for one number in all waits, or for one arrival or none.
  std::int64_t count = 1;
  for_each_op(agent_.body, [&](const Op& op) {
    if (op.code != OpCode::kWait) return;
    remembers_waits_ = true;
    if (op.exprs[1].is_const()) count = std::max<std::int64_t>(op.exprs[1].const_value(), 1);
  });
  if (remembers_waits_) line("PassedWaits<{}, {}> passed;", counters > 32 ? "u64" : "u32", count);
}

void AgentWriter::remembered_wait(const Op& op) {
  line("{{");
  ++depth_;
  counter_text(op);
  line("const u64 count = u64({});", threshold(op));
  line("if (!passed.holds(counter, count)) {{");
  ++depth_;
  wait_for_text(op, "count");
  line("passed.add(counter, count);");
  settle_after_wait();
  --depth_;
  line("}}");
  --depth_;
  line("}}");
}

// Tiles that such an entry passes over cost nothing else, and there may be many: tables have room
// for the worst routing.
void AgentWriter::declare_kept_entries() {
  kept_entries_.clear();
  for_each_op(agent_.body, [&](const Op& op) {
    const ExprNode* entry = constant_entry(program_, op);
    if (entry == nullptr) return;
    auto [at, is_new] = kept_entries_.try_emplace(table_entry_text(program_, *entry));
    if (!is_new) return;
    at->second = fmt::format("kept_entry{}", kept_entries_.size() - 1);
    line("int {} = kNotRead;", at->second);
  });
  // In a role that is not split the proof counts on all threads meeting at each wait
  // (proof/access_paths.cc).
  keeps_waits_ = !kept_entries_.empty() && !alone() && !apart() && site_.role->agents.size() > 1;
  if (keeps_waits_) line("[[maybe_unused]] u32 waited = 0;");
}

// The let of a kept entry; false: of anything else.
bool AgentWriter::kept_entry(const Op& op) {
  const ExprNode* entry = constant_entry(program_, op);
  if (entry == nullptr || kept_entries_.empty()) return false;
  std::string read = table_entry_text(program_, *entry);
  const std::string& kept = kept_entries_.at(read);
  line("if ({} == kNotRead) {} = {};", kept, kept, read);
  line("const int {} = {};", var_text(program_, op.var), kept);
  return true;
}

// Whether the wait is for the same in every tile, of a team that goes by such entries.
bool AgentWriter::keeps(const Op& op) const {
  constexpr std::size_t kMost = 32;
  if (!keeps_waits_ || op.code != OpCode::kWait) return false;
  if (!op.exprs[0].is_const() || !op.exprs[1].is_const()) return false;
  return kept_waits_.size() < kMost || kept_waits_.contains(key_of_wait(op));
}

AgentWriter::WaitKey AgentWriter::key_of_wait(const Op& op) {
  return {op.symbol, op.exprs[0].const_value(), op.exprs[1].const_value()};
}

void AgentWriter::kept_wait(const Op& op) {
  auto [at, is_new] = kept_waits_.try_emplace(key_of_wait(op), kept_waits_.size());
  line("if ((waited >> {} & 1) == 0) {{", at->second);
  ++depth_;
  line("if (team.tid == 0) {{");
  ++depth_;
  wait_text(op);
  --depth_;
  line("}}");
  settle_after_wait();
  line("waited |= 1u << {};", at->second);
  --depth_;
  line("}}");
}

}  // namespace stretto
