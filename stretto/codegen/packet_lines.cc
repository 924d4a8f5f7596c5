#include "stretto/codegen/packet_lines.h"

#include <algorithm>

#include "stretto/codegen/expr_text.h"
#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

// What surely divides `end - first`.
std::int64_t factor_behind(const Expr& first, std::int64_t end, const Block& body) {
  const ExprNode& n = first.node();
  if (first.is_const()) return known_factor(Expr(end - first.const_value()), body);
  if (n.op == ExprOp::kAdd && n.args[1].is_const()) {
    return factor_behind(n.args[0], end - n.args[1].const_value(), body);
  }
  return std::min(known_factor(first, body), known_factor(Expr(end), body));
}

// `at`: where the register lives.
bool goes_in_lines(const Program& program, const Agent& agent, const Op& op, const ValuePlan& at) {
  const Region& r = *op.region;
  const Tensor& t = program.tensors[static_cast<std::size_t>(r.tensor)];
  auto size = static_cast<std::int64_t>(size_bytes(t.dtype));
  if (size != 2 && size != 4) return false;
  constexpr std::int64_t kThread = 16, kLanes = 8, kLine = kLanes * kThread, kRun = 2 * kLine;
  // Of the lines that a warp has of a row all are in the tile or none: they go by one instruction.
  const std::int64_t of_warp =
      at.fragment ? kLine : std::max<std::int64_t>(kLine, std::min(at.lanes, 32) * kThread);
  auto multiple = [&](std::int64_t columns, std::int64_t of) { return columns * size % of == 0; };
  const Expr &width = t.shape.back(), &first = r.origin.back();
  bool columns = r.col_dim == static_cast<int>(t.shape.size()) - 1 && !r.col_end.has_value() &&
                 width.is_const() && multiple(width.const_value(), kRun) &&
                 multiple(known_factor(first, agent.body), kLine) && multiple(r.cols, of_warp) &&
                 multiple(factor_behind(first, width.const_value(), agent.body), of_warp);
  // All rows of a warp go where one of them does.
  std::int64_t rows_of_warp = at.fragment ? 8 : at.lanes % 32 == 0 ? 1 : 32 / kLanes;
  auto together = [&](std::int64_t rows) { return rows % rows_of_warp == 0; };
  auto rows = [&] {
    if (rows_of_warp == 1) return true;
    if (r.row_dim < 0) return false;
    auto dim = static_cast<std::size_t>(r.row_dim);
    return together(r.rows) && t.shape[dim].is_const() && together(t.shape[dim].const_value()) &&
           together(known_factor(r.origin[dim], agent.body));
  };
  bool layout = at.fragment ? op.code == OpCode::kStorePacket && size == 2
                            : at.lanes % kLanes == 0 && at.vec * size == kThread;
  return columns && layout && rows();
}

}  // namespace

std::vector<bool> tensors_in_lines(const Program& program, const std::vector<Role>& roles,
                                   const std::vector<RolePlan>& plans) {
  std::vector<bool> lines;
  for (const Tensor& t : program.tensors) lines.push_back(t.packet);
  auto may = [&](const Op& op) {  // packet operations alone touch packet buffers
    return op.region && lines[static_cast<std::size_t>(op.region->tensor)];
  };
  auto rule_out = [&](const Op& op) {
    if (may(op)) lines[static_cast<std::size_t>(op.region->tensor)] = false;
  };
  for_each_op(program.on_start.body, rule_out);
  for_each_op(program.on_end.body, rule_out);
  for (std::size_t i = 0; i < roles.size(); ++i) {
    for (std::size_t a = 0; a < roles[i].agents.size(); ++a) {
      const Agent& agent = roles[i].agents[a];
      const AgentPlan& plan = plans[i].agents[a];
      for_each_op(agent.body, [&](const Op& op) {
        if (!may(op)) return;
        int reg = op.code == OpCode::kLoadPacket ? op.result : op.operands[0];
        bool good = plan.cluster == 1 &&
                    goes_in_lines(program, agent, op, plan.values[static_cast<std::size_t>(reg)]);
        if (!good) rule_out(op);
      });
    }
  }
  return lines;
}

}  // namespace stretto
