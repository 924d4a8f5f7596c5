#include "stretto/executor/translate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/executor/fusion.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

class AgentTranslator {
 public:
  AgentTranslator(const Program& program, const Agent& agent, std::span<const Expr> known)
      : program_(program), known_(known), fusion_(program, agent) {
    code_.agent = &agent;
    code_.uses_register.assign(agent.values.size(), false);
  }

  AgentCode run() {
    emit_block(code_.agent->body);
    code_.insts.push_back({.flow = Flow::kEnd});
    return std::move(code_);
  }

 private:
  int here() const { return static_cast<int>(code_.insts.size()); }

  void emit_block(const Block& block) {
    for (const Op& op : block) emit(op);
  }

  void emit(const Op& op) {
    if (fusion_.dropped(&op)) return;
    switch (op.code) {
      case OpCode::kLoop:
        return emit_loop(op);
      case OpCode::kWhen:
        return emit_when(op);
      case OpCode::kDot:
      case OpCode::kDotAsync:
      case OpCode::kDotScaled:
        return emit_dot(op, nullptr);
      case OpCode::kAwait:
      case OpCode::kFence:
        return;  // everything an agent has issued is complete when its next instruction starts
      default:
        return emit_plain(op);
    }
  }

  void emit_plain(const Op& op) {
    if (!op_info(op.code).schedule_level) {
      throw UserError(fmt::format("{}:{}: '{}' is not resolved: the executor takes schedule level",
                                  op.loc.file, op.loc.line, op_info(op.code).name));
    }
    Inst inst{.code = op.code, .result = op.result, .var = op.var, .symbol = op.symbol, .op = &op};
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      inst.operands[i] = fusion_.source_of(&op, op.operands[i]);
      use(inst.operands[i]);
    }
    use(op.result);
    add_exprs(inst, op.exprs);
    if (op.region) inst.region = add_region(*op.region);
    if (op.region2) inst.region2 = add_region(*op.region2);
    code_.insts.push_back(std::move(inst));
  }

  void emit_loop(const Op& op) {
    if (const Op* dot = fusion_.folded_dot(op)) return emit_dot(*dot, &op);
    Inst begin{.flow = Flow::kLoopBegin, .var = op.var, .depth = depth_, .op = &op};
    add_exprs(begin, op.exprs);
    int at = here();
    code_.insts.push_back(begin);
    code_.loop_depth = std::max(code_.loop_depth, ++depth_);
    label();
    emit_block(op.bodies[0]);
    --depth_;
    code_.insts.push_back(
        {.flow = Flow::kLoopNext, .var = op.var, .target = at + 1, .depth = depth_, .op = &op});
    code_.insts[static_cast<std::size_t>(at)].target = here();
    label();
  }

  void emit_when(const Op& op) {
    Inst branch{.flow = Flow::kBranchZero, .op = &op};
    add_exprs(branch, op.exprs);
    int at = here();
    code_.insts.push_back(branch);
    emit_block(op.bodies[0]);
    bool has_else = op.bodies.size() > 1 && !op.bodies[1].empty();
    int jump = here();
    if (has_else) code_.insts.push_back({.flow = Flow::kJump, .op = &op});
    code_.insts[static_cast<std::size_t>(at)].target = here();
    label();
    if (!has_else) return;
    emit_block(op.bodies[1]);
    code_.insts[static_cast<std::size_t>(jump)].target = here();
    label();
  }

  void emit_dot(const Op& op, const Op* loop) {
    DotCode dot{.result = op.result, .acc = op.operands[0], .folded = loop != nullptr};
    dot.a = dot_source(&op, op.operands[1]);
    dot.b = dot_source(&op, op.operands[2]);
    if (op.code == OpCode::kDotScaled) {
      dot.scale_a = op.operands[3];
      dot.scale_b = op.operands[4];
      use(dot.scale_a);
      use(dot.scale_b);
      const ValueType& type = code_.agent->values[static_cast<std::size_t>(op.result)];
      std::size_t bytes = static_cast<std::size_t>(type.rows * type.cols) * sizeof(float);
      code_.scratch_bytes = std::max(code_.scratch_bytes, (bytes + 63) / 64 * 64);
    }
    std::int64_t columns = code_.agent->values[static_cast<std::size_t>(op.operands[2])].cols;
    bool sums = code_.agent->values[static_cast<std::size_t>(op.result)].cols > columns;
    if (sums) dot.sums_from = columns;
    dot.zero_acc = take_zero_fill(dot);
    use(dot.result);
    if (!dot.zero_acc) use(dot.acc);
    Inst inst{.code = op.code, .result = op.result, .op = &op};
    inst.dot = static_cast<int>(code_.dots.size());
    if (loop != nullptr) {
      inst.var = loop->var;
      add_exprs(inst, loop->exprs);
    } else {
      add_exprs(inst, op.exprs);
    }
    code_.dots.push_back(dot);
    code_.insts.push_back(std::move(inst));
  }

  // A fill with zero right before, on every path to here, need not be carried out.
  bool take_zero_fill(const DotCode& dot) {
    if (here() <= last_label_) return false;
    const Inst& last = code_.insts.back();
    if (last.flow != Flow::kOp || last.code != OpCode::kFill || last.result != dot.acc ||
        last.op->value != 0) {
      return false;
    }
    if (dot.result == dot.acc || fusion_.num_reads(dot.acc) == 1) code_.insts.pop_back();
    return true;
  }

  DotSource dot_source(const Op* dot, int reg) {
    if (auto view = fusion_.view_of(dot, reg)) {
      return {.region = add_region(*view->region), .transposed = view->transposed};
    }
    use(reg);
    return {.reg = reg};
  }

  void use(int reg) {
    if (reg >= 0) code_.uses_register[static_cast<std::size_t>(reg)] = true;
  }

  // A jump may land here: what was emitted before need not have run.
  void label() { last_label_ = here(); }

  void add_exprs(Inst& inst, const std::vector<Expr>& exprs) {
    inst.expr = static_cast<int>(code_.exprs.size());
    inst.num_exprs = static_cast<int>(exprs.size());
    for (const Expr& e : exprs) code_.exprs.emplace_back(e, known_);
  }

  int add_region(const Region& region) {
    RegionCode r{.tensor = region.tensor,
                 .rank = ExprCode(region.rank, known_),
                 .row_dim = region.row_dim,
                 .col_dim = region.col_dim,
                 .rows = region.rows,
                 .cols = region.cols,
                 .row_end = ExprCode(region.row_end, known_),
                 .col_end = ExprCode(region.col_end, known_)};
    for (const Expr& e : region.origin) r.origin.emplace_back(e, known_);
    code_.regions.push_back(std::move(r));
    return static_cast<int>(code_.regions.size()) - 1;
  }

  const Program& program_;
  std::span<const Expr> known_;
  Fusion fusion_;
  AgentCode code_;
  int depth_ = 0;
  int last_label_ = 0;
};

TensorCode translate_tensor(const Program& program, int idx, std::span<const Expr> known) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(idx)];
  TensorCode code{.shape = bound_shape(program, idx)};
  code.stride.assign(code.shape.size(), 1);
  for (std::size_t d = code.shape.size(); d-- > 1;) {
    code.stride[d - 1] = code.stride[d] * code.shape[d];
  }
  code.elements = num_elements(code.shape);
  code.bytes = storage_bytes(program, idx);
  code.slot_bytes = code.bytes / static_cast<std::size_t>(t.num_slots);
  code.lo = ExprCode(t.contract.lo, known);
  code.hi = ExprCode(t.contract.hi, known);
  return code;
}

}  // namespace

ProgramCode translate(std::shared_ptr<const Program> program, int rank) {
  const Program& p = *program;
  if (p.level != Level::kSchedule) {
    throw UserError(fmt::format("{}: the executor runs schedule-level programs only", p.name));
  }
  ProgramCode code{.program = program, .rank = rank};
  std::vector<Expr> known = {Expr(rank)};
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    int idx = static_cast<int>(i);
    code.tensors.push_back(translate_tensor(p, idx, known));
    for (std::size_t d = 0; d < p.tensors[i].shape.size(); ++d) {
      ExprCode extent(p.tensors[i].shape[d], known);
      if (!extent.is_const()) {
        code.dynamic_dims.push_back({idx, static_cast<int>(d), std::move(extent)});
      }
    }
  }
  for (std::size_t v = 1; v < p.vars.size(); ++v) {
    VarKind kind = p.vars[v].kind;
    if (kind == VarKind::kExtent || kind == VarKind::kScalar) {
      code.launch_vars.push_back(static_cast<int>(v));
    }
  }
  for (const Signal& signal : p.signals) {
    code.signal_base.push_back(code.num_counters);
    code.num_counters += signal.num_channels;
  }
  auto agent_code = [&](const Agent& agent) { return AgentTranslator(p, agent, known).run(); };
  std::vector<std::int64_t> at_bounds = initial_vars(p, rank, extent_bounds(p));
  code.on_start = agent_code(p.on_start);
  code.on_end = agent_code(p.on_end);
  for (const Role& role : p.roles) {
    RoleCode r{.role = &role, .num_tiles = ExprCode(role.num_tiles, known)};
    r.max_tiles = r.num_tiles.eval(at_bounds);
    for (const Agent& agent : role.agents) r.agents.push_back(agent_code(agent));
    code.roles.push_back(std::move(r));
  }
  return code;
}

}  // namespace stretto
