#include "stretto/passes/unseen_rows.h"

#include <algorithm>
#include <utility>

#include "stretto/ir/block_ops.h"

namespace stretto {
namespace {

bool reads(const Op& op, int reg) {
  return std::find(op.operands.begin(), op.operands.end(), reg) != op.operands.end();
}

// Itself or an operation inside it.
bool mentions(const Op& op, int reg) {
  return op.result == reg || reads(op, reg) ||
         std::any_of(op.bodies.begin(), op.bodies.end(), [&](const Block& body) {
           return std::any_of(body.begin(), body.end(),
                              [&](const Op& inner) { return mentions(inner, reg); });
         });
}

// Whether the block overwrites the register before it reads it, whichever way it goes.
bool begins_anew(const Block& block, int reg) {
  auto first =
      std::find_if(block.begin(), block.end(), [&](const Op& op) { return mentions(op, reg); });
  if (first == block.end()) return true;
  if (first->bodies.empty()) return !reads(*first, reg);
  bool later = std::any_of(first + 1, block.end(), [&](const Op& op) { return mentions(op, reg); });
  return !later && std::all_of(first->bodies.begin(), first->bodies.end(),
                               [&](const Block& body) { return begins_anew(body, reg); });
}

std::int64_t num_mentions(const Block& block, int reg) {
  std::int64_t count = 0;
  for_each_op(block, [&](const Op& op) { count += op.result == reg || reads(op, reg) ? 1 : 0; });
  return count;
}

// How many rows of a region's box exist; absent where no row limits it.
Expr rows_left(const Region& r) {
  if (!r.row_end.has_value() || r.row_dim < 0) return {};
  return r.row_end - r.origin[static_cast<std::size_t>(r.row_dim)];
}

class LimitedLoad {
 public:
  LimitedLoad(const Agent& agent, const Op& load)
      : agent_(agent), load_(load), limit_(rows_left(*load.region)), rows_(load.region->rows) {}

  bool is_unseen() {
    const Block* scope = &agent_.body;
    if (!find_scope(agent_.body, scope) || !follow()) return false;
    return std::all_of(made_.begin(), made_.end(), [&](int reg) {
      return num_mentions(*scope, reg) == num_mentions(agent_.body, reg) &&
             begins_anew(*scope, reg);
    });
  }

 private:
  // The innermost block within which the limit stands still. False where a variable of the limit
  // has several values, or none in a block around the load.
  bool find_scope(const Block& block, const Block*& scope) const {
    bool one_each = true;
    for_each_op(block, [&](const Op& op) {
      if (!defines(op)) return;
      std::int64_t count = 0;
      for_each_op(block, [&](const Op& other) { count += defines(other) && other.var == op.var; });
      one_each &= count == 1;
    });
    return one_each && narrow(block, scope);
  }
  bool defines(const Op& op) const {
    return (op.code == OpCode::kLet || op.code == OpCode::kLoop) && uses_var(limit_, op.var);
  }
  // Down to the load.
  bool narrow(const Block& block, const Block*& scope) const {
    for (const Op& op : block) {
      if (&op == &load_) return true;
      if (defines(op) && op.code == OpCode::kLet) scope = &block;
      for (const Block& body : op.bodies) {
        const Block* around = std::exchange(scope, defines(op) ? &body : scope);
        if (narrow(body, scope)) return true;
        scope = around;
      }
    }
    return false;
  }

  // What comes of the load, as long as it is row by row. False where a row is seen.
  bool follow() {
    made_ = {load_.result};
    bool unseen = true;
    for (std::size_t before = 0; unseen && before != made_.size();) {
      before = made_.size();
      for_each_op(agent_.body, [&](const Op& op) { unseen = unseen && takes(op); });
    }
    return unseen;
  }

  bool takes(const Op& op) {
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      if (made_.count(op.operands[i]) == 0) continue;
      if (op.code == OpCode::kStore) {
        Expr stored = rows_left(*op.region);
        if (!stored.has_value() || !stored.same(limit_) || op.region->rows != rows_) return false;
        continue;
      }
      if (!row_by_row(op, i)) return false;
      made_.insert(op.result);
    }
    return true;
  }

  // Whether row r of the result is the only one that comes of row r of the operand.
  bool row_by_row(const Op& op, std::size_t operand) const {
    if (op.result < 0 || agent_.values[static_cast<std::size_t>(op.result)].rows != rows_) {
      return false;
    }
    switch (op.code) {
      case OpCode::kDot:
      case OpCode::kDotScaled:
        return operand != 2;
      case OpCode::kReduce:
        return op.axis == 1;
      case OpCode::kUnary:
      case OpCode::kBinary:
      case OpCode::kWhere:
      case OpCode::kCast:
      case OpCode::kCopyValue:
      case OpCode::kBroadcast:
      case OpCode::kColumns:
        return agent_.values[static_cast<std::size_t>(op.operands[operand])].rows == rows_;
      default:
        return false;
    }
  }

  const Agent& agent_;
  const Op& load_;
  Expr limit_;
  std::int64_t rows_;
  std::set<int> made_;  // registers whose rows past the limit come of the load's
};

}  // namespace

std::set<const Op*> loads_of_unseen_rows(const Agent& agent) {
  std::set<const Op*> out;
  for_each_op(agent.body, [&](const Op& op) {
    bool limited = op.code == OpCode::kLoad && rows_left(*op.region).has_value();
    if (limited && LimitedLoad(agent, op).is_unseen()) out.insert(&op);
  });
  return out;
}

}  // namespace stretto
