#include "stretto/passes/split_survey.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/ir/block_ops.h"
#include "stretto/ir/tables.h"
#include "stretto/passes/register_uses.h"

namespace stretto {
namespace {

bool is_factor(const Op& op, int reg) {
  return (op.code == OpCode::kDot || op.code == OpCode::kDotScaled) &&
         (op.operands[1] == reg || op.operands[2] == reg);
}

bool is_elementwise(OpCode code) {
  switch (code) {
    case OpCode::kTranspose:
    case OpCode::kCast:
    case OpCode::kCopyValue:
    case OpCode::kUnary:
    case OpCode::kBinary:
    case OpCode::kWhere:
      return true;
    default:
      return false;
  }
}

bool names_itself(const Op& op, int reg) {
  return op.result == reg || std::count(op.operands.begin(), op.operands.end(), reg) > 0;
}

}  // namespace

SplitSurvey::SplitSurvey(const Program& program, const Role& role)
    : program_(program),
      role_(role),
      slot_of_(role.agents[0].values.size(), -1),
      num_writes_(role.agents[0].values.size(), 0),
      num_reads_(role.agents[0].values.size(), 0),
      writer_(role.agents[0].values.size(), nullptr),
      table_var_(program.vars.size(), false) {
  const Block& body = role.agents[0].body;
  count_writes(body);
  survey(body, {});
  find_views(body);
  if (obstacle_.empty() && in_loop_.empty()) {
    obstacle_ = has_dots_ ? "no load inside a loop feeds a dot" : "no loop loads rows";
  }
  if (obstacle_.empty()) check_order();
  if (obstacle_.empty()) check_packets();
}

bool SplitSurvey::names(const Op& op, int reg) {
  return any_op(op, [&](const Op& inner) { return names_itself(inner, reg); });
}

void SplitSurvey::count_writes(const Block& block) {
  for (const Op& op : block) {
    if (op.code == OpCode::kNotify) notified_.insert(op.symbol);
    has_dots_ |= op.code == OpCode::kDot || op.code == OpCode::kDotScaled;
    for (int reg : op.operands) ++num_reads_[static_cast<std::size_t>(reg)];
    if (op.result >= 0) {
      ++num_writes_[static_cast<std::size_t>(op.result)];
      writer_[static_cast<std::size_t>(op.result)] = &op;
    }
    for (const Block& body : op.bodies) count_writes(body);
  }
}

void SplitSurvey::survey(const Block& block, Around around) {
  for (std::size_t i = 0; i < block.size(); ++i) {
    const Op& op = block[i];
    survey_writes(op);
    if (around.waits) {
      handed_on_.insert(&op);
    } else {
      for (const Expr& e : op.exprs) check_table(e);
    }
    if (op.code == OpCode::kWait) around.waits |= notified_.count(op.symbol) != 0;
    if (op.code == OpCode::kLet) {
      table_var_[static_cast<std::size_t>(op.var)] = depends_on_changing_table(op.exprs[0]);
    } else if ((op.code == OpCode::kLoad || has_index(op)) && feeds_dot(block, i)) {
      piped_.insert(&op);
      if (op.code == OpCode::kLoadRows) add_index(op.operands[0]);
      if (around.loop) in_loop_.insert(&op);
      slot_of_[static_cast<std::size_t>(op.result)] = op.result;
      if (around.table) {
        obstacle_ = fmt::format("a table that launches change decides about the load at {}:{}",
                                op.loc.file, op.loc.line);
      }
    } else if (op.code == OpCode::kLoadPacket) {
      packet_ = &op;
    } else if (op.code == OpCode::kLoad) {
      survey_ahead(op, around);
    }
    if (op.bodies.empty()) continue;
    Around inside = around;
    for (const Expr& e : op.exprs) inside.table |= depends_on_changing_table(e);
    if (op.code == OpCode::kLoop) {
      inside.loop = true;
      table_var_[static_cast<std::size_t>(op.var)] = inside.table;
    }
    for (const Block& body : op.bodies) survey(body, inside);
  }
  if (around.loop && !around.table) survey_vectors(block);
}

// What a product is combined with.
void SplitSurvey::survey_ahead(const Op& op, Around around) {
  bool matrix = op.region->rows > 1 && op.region->cols > 1;
  bool once = num_writes_[static_cast<std::size_t>(op.result)] == 1;
  if (role_.resource.load_slots == 0 || !has_dots_ || !matrix || !once || around.table) return;
  for (auto* set : {&piped_, &ahead_}) set->insert(&op);
  if (around.loop) in_loop_.insert(&op);
  slot_of_[static_cast<std::size_t>(op.result)] = op.result;
}

// Beside loads that go through pipes a vector would have to arrive before the product starts. Where
// a role multiplies nothing, its rows are what it loads ahead.
void SplitSurvey::survey_vectors(const Block& block) {
  auto is_piped_load = [&](const Op& op) { return is_piped(op); };
  if (has_dots_ && std::none_of(block.begin(), block.end(), is_piped_load)) return;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const Op& op = block[i];
    if (!has_dots_ && has_index(op) && op.region->cols > 1 && from_here(*op.region)) {
      add_index(op.operands[0]);
      slot_of_[static_cast<std::size_t>(op.result)] = op.result;
      for (auto* set : {&piped_, &in_loop_}) set->insert(&op);
      continue;
    }
    if (op.code != OpCode::kLoad || is_piped(op) || !own_input(*op.region)) continue;
    auto reg = static_cast<std::size_t>(op.result);
    bool read_here =
        std::any_of(block.begin() + static_cast<std::ptrdiff_t>(i), block.end(), [&](const Op& o) {
          return std::count(o.operands.begin(), o.operands.end(), op.result) > 0;
        });
    bool row = op.region->rows == 1 && op.region->cols > 1;
    bool vector = has_dots_ ? op.region->rows == 1 || op.region->cols == 1 : row;
    if (!vector || num_writes_[reg] != 1 || !read_here) continue;
    slot_of_[reg] = op.result;
    for (auto* set : {&piped_, &in_loop_, &vectors_}) set->insert(&op);
  }
}

bool SplitSurvey::has_index(const Op& op) const {
  return op.code == OpCode::kLoadRows && is_index(op.operands[0]);
}

// Loaded, or computed from such and from numbers.
bool SplitSurvey::is_index(int reg) const {
  auto index = static_cast<std::size_t>(reg);
  const Op* writer = writer_[index];
  if (num_writes_[index] != 1) return false;
  if (writer->code == OpCode::kLoad) {
    const Region& r = *writer->region;
    return own_input(r) ||
           (from_here(r) &&
            program_.tensors[static_cast<std::size_t>(r.tensor)].kind == TensorKind::kBuffer);
  }
  if (writer->code == OpCode::kLoadRows && !own_input(*writer->region)) return false;
  bool computed = writer->bodies.empty() && is_pure(*writer);
  return (computed || writer->code == OpCode::kLoadRows) &&
         std::all_of(writer->operands.begin(), writer->operands.end(),
                     [&](int operand) { return is_index(operand); });
}

void SplitSurvey::add_index(int reg) {
  const Op* writer = writer_[static_cast<std::size_t>(reg)];
  indices_.insert(writer);
  for (int operand : writer->operands) add_index(operand);
}

bool SplitSurvey::only_picks_rows(const Op& op) const {
  if (!picks_rows(op)) return false;
  std::int64_t picking = 0;
  for (const Op* load : piped_) {
    picking += load->code == OpCode::kLoadRows && load->operands[0] == op.result;
  }
  for (const Op* index : indices_) {
    auto reads = std::count(index->operands.begin(), index->operands.end(), op.result);
    if (reads > 0 && only_picks_rows(*index)) picking += reads;
  }
  return num_reads_[static_cast<std::size_t>(op.result)] == picking;
}

bool SplitSurvey::is_own(const Region& r) {
  return !r.rank.has_value() || r.rank.same(Expr::var(0));
}

void SplitSurvey::survey_writes(const Op& op) {
  switch (op.code) {
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
    case OpCode::kStorePacket:
      if (is_own(*op.region)) written_.insert(op.region->tensor);
      return;
    case OpCode::kCopy:
      if (is_own(*op.region2)) written_.insert(op.region2->tensor);
      return;
    default:
      return;
  }
}

void SplitSurvey::check_table(const Expr& expr) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable) tables_.insert(static_cast<int>(n.value));
  for (const Expr& arg : n.args) check_table(arg);
}

bool SplitSurvey::depends_on_changing_table(const Expr& expr) const {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kVar) return table_var_[static_cast<std::size_t>(n.value)];
  if (n.op == ExprOp::kTable &&
      !is_steady_table(program_.tensors[static_cast<std::size_t>(n.value)])) {
    return true;
  }
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return depends_on_changing_table(arg); });
}

bool SplitSurvey::reads_table_of_launch(const Expr& expr) const {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable &&
      program_.tensors[static_cast<std::size_t>(n.value)].kind != TensorKind::kInput) {
    return true;
  }
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return reads_table_of_launch(arg); });
}

bool SplitSurvey::feeds_dot(const Block& block, std::size_t load) const {
  int reg = block[load].result;
  if (num_writes_[static_cast<std::size_t>(reg)] != 1) return false;
  std::set<int> values = {reg};
  for (std::size_t i = load + 1; i < block.size(); ++i) {
    if (spreads_to_dot(block[i], values)) return true;
  }
  return false;
}

bool SplitSurvey::spreads_to_dot(const Op& op, std::set<int>& values) const {
  for (int reg : op.operands) {
    if (values.count(reg) == 0) continue;
    if (is_factor(op, reg)) return true;
    if (is_elementwise(op.code)) values.insert(op.result);
  }
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) {
      if (spreads_to_dot(inner, values)) return true;
    }
  }
  return false;
}

// The tensor core reads a transposed operand where it lies, so the slot must be held for it.
void SplitSurvey::find_views(const Block& block) {
  for (const Op& op : block) {
    if (op.code == OpCode::kTranspose && num_writes_[static_cast<std::size_t>(op.result)] == 1) {
      slot_of_[static_cast<std::size_t>(op.result)] =
          slot_of_[static_cast<std::size_t>(op.operands[0])];
    }
    for (const Block& body : op.bodies) find_views(body);
  }
}

bool SplitSurvey::loads_once() const {
  return std::any_of(piped_.begin(), piped_.end(),
                     [&](const Op* op) { return !is_in_loop(*op) && !is_ahead(*op); });
}

bool SplitSurvey::is_async(const Op& op) const {
  return op.code == OpCode::kDot && (slot_of_[static_cast<std::size_t>(op.operands[1])] >= 0 ||
                                     slot_of_[static_cast<std::size_t>(op.operands[2])] >= 0);
}

bool SplitSurvey::reads(const Op& op, int slot) const {
  return any_op(op, [&](const Op& inner) {
    return std::any_of(inner.operands.begin(), inner.operands.end(),
                       [&](int reg) { return slot_of_[static_cast<std::size_t>(reg)] == slot; });
  });
}

SlotUses SplitSurvey::slot_uses(const Block& block) const {
  SlotUses uses;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (is_piped(block[i])) {
      uses.slots.push_back({block[i].result, i, block[i].loc, is_vector(block[i])});
    }
    for (SlotUses::Slot& slot : uses.slots) {
      if (reads(block[i], slot.reg)) slot.last_use = i;
      if (slot.vector) uses.last_vector_use = std::max(uses.last_vector_use, slot.last_use);
    }
    if (is_async(block[i])) {
      ++uses.num_dots;
      uses.last_dot = i;
    }
  }
  uses.overlaps = !uses.slots.empty() && uses.num_dots > 0 && overlaps(block, uses);
  return uses;
}

// Slots are read by dots alone, the dots read slots alone, and nobody else looks at the
// accumulators.
bool SplitSurvey::overlaps(const Block& block, const SlotUses& uses) const {
  auto slot = [&](int reg) { return slot_of_[static_cast<std::size_t>(reg)]; };
  std::set<int> accumulators;
  for (const Op& op : block) {
    if (!is_async(op)) continue;
    if (op.result != op.operands[0] || slot(op.operands[1]) < 0 || slot(op.operands[2]) < 0) {
      return false;
    }
    accumulators.insert(op.result);
  }
  for (const Op& op : block) {
    if (is_async(op)) continue;
    bool touches = any_op(op, [&](const Op& inner) {
      return is_async(inner) || std::any_of(accumulators.begin(), accumulators.end(),
                                            [&](int acc) { return names_itself(inner, acc); });
    });
    if (touches) return false;
    bool view = op.code == OpCode::kTranspose && slot(op.result) >= 0;
    bool uses_slot =
        std::any_of(uses.slots.begin(), uses.slots.end(), [&](const SlotUses::Slot& s) {
          return reads(op, s.reg) && !is_vector(*writer_[static_cast<std::size_t>(s.reg)]);
        });
    if (uses_slot && !view) return false;
  }
  return true;
}

// What other ranks write is waited for where it is needed, or it would hold up what is there.
bool SplitSurvey::from_here(const Region& r) const {
  return is_own(r) && program_.tensors[static_cast<std::size_t>(r.tensor)].space == Space::kLocal;
}

bool SplitSurvey::own_input(const Region& r) const {
  return is_own(r) &&
         program_.tensors[static_cast<std::size_t>(r.tensor)].kind == TensorKind::kInput;
}

// The producer knows nothing of the packets that the consumer reads.
void SplitSurvey::check_packets() {
  bool ordered =
      packet_ != nullptr && !std::all_of(piped_.begin(), piped_.end(),
                                         [&](const Op* op) { return own_input(*op->region); });
  if (ordered) {
    obstacle_ = fmt::format("the packets read at {}:{} order what follows them", packet_->loc.file,
                            packet_->loc.line);
  }
}

// The producer runs ahead of the consumer's writes, so it may read nothing of what they write to
// the own rank, unless it waits for a signal by which the role itself hands on what it has written.
// Who writes to a rank that is told by an expression means another; the proof, which walks both
// agents, refuses what does not.
void SplitSurvey::check_order() {
  auto reason = [&](int tensor) {
    return fmt::format("it reads '{}' and writes it too",
                       program_.tensors[static_cast<std::size_t>(tensor)].name);
  };
  for (const Op* op : piped_) {
    if (handed_on_.count(op) != 0) continue;
    if (written_.count(op->region->tensor) != 0) obstacle_ = reason(op->region->tensor);
  }
  for (int table : tables_) {
    if (written_.count(table) != 0) obstacle_ = reason(table);
  }
  for (const Op* op : indices_) {
    if (!op->region || handed_on_.count(op) != 0) continue;
    if (written_.count(op->region->tensor) != 0) obstacle_ = reason(op->region->tensor);
  }
}

}  // namespace stretto
