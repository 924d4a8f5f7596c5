// Reads of shared memory that stand around a product, for work on the product before it. They stand
// in one queue with matrix instructions: those behind a product come when its last instruction has
// begun, and what they are for comes later than that. Half of them stand before it, or as many as
// registers can hold beside what is multiplied; the rest goes behind. Other places were slower
// (docs/performance/fp8.md).
#include <algorithm>
#include <set>

#include "stretto/codegen/agent_writer.h"

namespace stretto {
namespace {

// Of a thread's registers, for addresses and counters: with 12 the assembler (CUDA 13.0) spills in
// a scaled product of 128 columns.
constexpr int kAddresses = 16;

bool elementwise(const Op& op) {
  return op.code == OpCode::kUnary || op.code == OpCode::kBinary || op.code == OpCode::kWhere ||
         op.code == OpCode::kCast || op.code == OpCode::kBroadcast || op.code == OpCode::kCopyValue;
}

bool reads(const Op& op, int reg) {
  return std::find(op.operands.begin(), op.operands.end(), reg) != op.operands.end();
}

}  // namespace

int AgentWriter::registers_of(int reg) const {
  return values_.row_slots(type(reg), value_plan(reg)) *
         values_.col_slots(type(reg), value_plan(reg));
}

// Whether the product before is complete and another one is issued before what is read is used.
bool AgentWriter::spreads(std::size_t get) const {
  const Block& ops = *position_.first;
  const Op& read = ops[get];
  const ValueType& row = type(read.result);
  const ValuePlan& plan = value_plan(read.result);
  bool of_columns = plan.fragment && plan.used_elsewhere && row.dtype == DType::kF32 &&
                    row.rows == 1 && row.cols > 1 && row.cols % 8 == 0;
  if (read.code != OpCode::kPipeGet || !of_columns || !in_flight_.empty()) return false;
  for (std::size_t i = get + 1; i < ops.size(); ++i) {
    const Op& op = ops[i];
    bool freed = op.code == OpCode::kPipeRelease && op.symbol == read.symbol;
    if (freed || !op.bodies.empty() || reads(op, read.result)) return false;
    if (op.code != OpCode::kDotAsync) continue;
    bool of_slots = value_plan(op.operands[1]).from_slot && value_plan(op.operands[2]).from_slot;
    return of_slots && dot_kind(agent_, op) == DotKind::kWgmma && op.exprs.empty() &&
           type(op.result).cols == type(op.operands[2]).cols;
  }
  return false;
}

// A thread's registers that neither products nor sums which pass through this block have, nor
// columns, which are read whole.
int AgentWriter::room_for_reads() const {
  const auto& [ops, at] = position_;
  std::set<int> held, written;
  for (const Op& op : *ops) {
    for (int reg : op.operands) {
      if (written.count(reg) == 0) held.insert(reg);
    }
    if (op.code == OpCode::kDotAsync) held.insert(op.result);
    if (op.result >= 0) written.insert(op.result);
  }
  auto issues = [&](std::size_t i) { return (*ops)[i].code == OpCode::kDotAsync; };
  std::size_t first = at;
  while (first > 0 && !issues(first - 1)) --first;
  for (std::size_t i = first; !issues(i); ++i) {
    if ((*ops)[i].code == OpCode::kPipeGet && !spreads(i)) held.insert((*ops)[i].result);
  }
  int room = plan_.registers[agent_idx()] - kAddresses;
  for (int reg : held) {
    if (value_plan(reg).used_elsewhere) room -= registers_of(reg);
  }
  for (const SpreadRead& read : spread_) room -= read.before;
  return room;
}

// False where it is read whole.
bool AgentWriter::load_spread(const Op& get) {
  if (!spreads(position_.second)) return false;
  SpreadRead read{.reg = get.result, .all = registers_of(get.result)};
  read.before = std::clamp(room_for_reads() / 2 * 2, 0, read.all / 4 * 2);
  spread_.push_back(read);
  if (read.before > 0) line("{}", part_text(read, 0, read.before));
  return true;
}

std::string AgentWriter::part_text(const SpreadRead& read, int from, int to) const {
  return fmt::format("load_columns<L{}, {}, {}>(v{}, s{}, team);", read.reg, from, to, read.reg,
                     read.reg);
}

// The rest of the reads, and what the threads compute behind the product. In a branch that is
// always taken: without one the assembler puts it between the first two matrix instructions, and
// the tensor core waits for it. Returns the last operation that is written.
std::size_t AgentWriter::write_behind(const Block& ops, std::size_t product) {
  line("if (always(origin)) {{");
  ++depth_;
  for (const SpreadRead& read : std::exchange(spread_, {})) {
    line("{}", part_text(read, read.before, read.all));
  }
  std::size_t i = product + 1;
  for (; i < ops.size() && elementwise(ops[i]); ++i) {
    position_ = {&ops, i};
    emit(ops[i]);
  }
  --depth_;
  line("}}");
  return i - 1;
}

}  // namespace stretto
