#include "stretto/proof/deciding_tables.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/loop_fold.h"

namespace stretto {
namespace {

class Flow {
 public:
  explicit Flow(const Program& program)
      : decides(program.tensors.size(), false),
        program_(program),
        has_value_(program.tensors.size(), false) {
    for (const Agent* edge : {&program.on_start, &program.on_end}) block(edge->body);
    for (const Role& role : program.roles) {
      counted_pipes.emplace_back();
      for (const Agent& agent : role.agents) block(agent.body);
    }
    for (std::size_t t = 0; t < decides.size(); ++t) {
      const Tensor& tensor = program.tensors[t];
      bool free = tensor.contract.kind == ContractKind::kRange ||
                  tensor.contract.kind == ContractKind::kPermutation;
      any |= decides[t];
      decides[t] = decides[t] && has_value_[t] && free && is_steady_table(tensor);
    }
  }

  std::vector<bool> decides;  // per tensor
  bool any = false;
  std::set<const Op*> counted_loops;
  std::vector<std::set<int>> counted_pipes;

 private:
  void block(const Block& ops) {
    for (const Op& op : ops) {
      if (op.code == OpCode::kLet) tables_of_[op.var] = tables_in(op.exprs[0]);
      look_for_values(op);
      bool around = !op.bodies.empty() && any_synchronises(op);
      // Under a condition pipes go by what it says, whatever the entries' values are.
      bool by_text = op.code == OpCode::kWhen && passes_slots_alone(op);
      if (is_counted(op)) {
        by_text = true;
        counted_loops.insert(&op);
        pipes_in(op.bodies[0], counted_pipes.back());
      }
      if (around || op.code == OpCode::kWait) {
        for (const Expr& e : op.exprs) {
          for (int t : tables_in(e)) by_text ? any = true : decides[at(t)] = true;
        }
      }
      for (const Block& body : op.bodies) block(body);
    }
  }

  // What reaches no more than conditions tells by their text which waits are made: its values, as
  // many as there are tiles perhaps, need not be told apart.
  void look_for_values(const Op& op) {
    auto use = [&](const Expr& e) {
      for (int t : tables_in(e)) has_value_[at(t)] = true;
    };
    for (const auto& region : {op.region, op.region2}) {
      if (!region) continue;
      for (const Expr& e : {region->rank, region->row_end, region->col_end}) use(e);
      std::for_each(region->origin.begin(), region->origin.end(), use);
    }
    if (op.code == OpCode::kLet || op.code == OpCode::kWhen || is_counted(op)) return;
    std::for_each(op.exprs.begin(), op.exprs.end(), use);
  }

  bool is_counted(const Op& op) const {
    if (op.code != OpCode::kLoop || !any_synchronises(op)) return false;
    return (!tables_in(op.exprs[0]).empty() || !tables_in(op.exprs[1]).empty()) &&
           only_passes_slots(op.bodies[0]) && reads_own_inputs(op.bodies[0], program_);
  }

  static void pipes_in(const Block& body, std::set<int>& pipes) {
    for (const Op& op : body) {
      if (passes_slot(op)) pipes.insert(op.symbol);
      for (const Block& inner : op.bodies) pipes_in(inner, pipes);
    }
  }

  static bool any_synchronises(const Op& op) {
    for (const Block& body : op.bodies) {
      if (synchronises(body)) return true;
    }
    return false;
  }

  static bool passes_slots_alone(const Op& op) {
    return std::all_of(op.bodies.begin(), op.bodies.end(), [](const Block& body) {
      return std::all_of(body.begin(), body.end(), [](const Op& o) {
        return (passes_slot(o) || !op_info(o.code).synchronises) && passes_slots_alone(o);
      });
    });
  }

  std::set<int> tables_in(const Expr& expr) const {
    std::set<int> out;
    if (!expr.has_value()) return out;
    const ExprNode& n = expr.node();
    if (n.op == ExprOp::kTable) out.insert(static_cast<int>(n.value));
    if (n.op == ExprOp::kVar) {
      auto it = tables_of_.find(static_cast<int>(n.value));
      if (it != tables_of_.end()) return it->second;
    }
    for (const Expr& arg : n.args) out.merge(tables_in(arg));
    return out;
  }

  const Program& program_;
  std::vector<bool> has_value_;             // per tensor: goes where a number is asked for
  std::map<int, std::set<int>> tables_of_;  // per variable of a let
};

}  // namespace

DecidingTables deciding_tables(const Program& program) {
  Flow flow(program);
  return {.any = flow.any,
          .by_entry = std::move(flow.decides),
          .counted_loops = std::move(flow.counted_loops),
          .counted_pipes = std::move(flow.counted_pipes)};
}

}  // namespace stretto
