#include "stretto/passes/unseen_rows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

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

// The terms of a sum, each with how often it is added, and what constants come to.
struct Sum {
  std::vector<std::pair<Expr, std::int64_t>> terms;
  std::int64_t constant = 0;
  bool is_known = true;  // no constant has left 64 bits

  void add(const Expr& e, std::int64_t sign) {
    const ExprNode& node = e.node();
    if (node.op == ExprOp::kAdd || node.op == ExprOp::kSub) {
      add(node.args[0], sign);
      add(node.args[1], node.op == ExprOp::kAdd ? sign : -sign);
    } else if (node.op == ExprOp::kConst) {
      is_known = is_known && !__builtin_mul_overflow(node.value, sign, &sign) &&
                 !__builtin_add_overflow(constant, sign, &constant);
    } else {
      auto found = std::find_if(terms.begin(), terms.end(),
                                [&](const auto& term) { return term.first.same(e); });
      if (found == terms.end()) {
        terms.emplace_back(e, sign);
      } else {
        found->second += sign;
      }
    }
  }
};

// Whether they have one value whatever their variables are: sums of the same terms.
bool are_one(const Expr& a, const Expr& b) {
  Sum difference;
  difference.add(a, 1);
  difference.add(b, -1);
  return difference.is_known && difference.constant == 0 &&
         std::all_of(difference.terms.begin(), difference.terms.end(),
                     [](const auto& term) { return term.second == 0; });
}

// `end` - `begin`, without terms that are in both: shards begin at different rows, and may have as
// many each.
Expr distance(const Expr& begin, const Expr& end) {
  Sum sum;
  sum.add(end, 1);
  sum.add(begin, -1);
  if (!sum.is_known) return end - begin;
  Expr out = sum.constant;
  for (const auto& [term, count] : sum.terms) {
    if (count != 0) out = out + term * count;
  }
  return out;
}

// How many rows of a region's box exist, by the end that it says; absent where it says none.
Expr rows_left(const Region& r) {
  if (!r.row_end.has_value() || r.row_dim < 0) return {};
  return distance(r.origin[static_cast<std::size_t>(r.row_dim)], r.row_end);
}

class LimitedLoad {
 public:
  LimitedLoad(const Program& program, const Agent& agent, const Op& load)
      : program_(program),
        agent_(agent),
        load_(load),
        limit_(rows_left(*load.region)),
        rows_(load.region->rows) {}

  bool is_unseen() {
    const Block* scope = &agent_.body;
    if (!find_scope(agent_.body, scope) || !follow()) return false;
    return std::all_of(made_.begin(), made_.end(), [&](const auto& made) {
      return num_mentions(*scope, made.first) == num_mentions(agent_.body, made.first) &&
             begins_anew(*scope, made.first);
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

  // How the load's rows lie in a register.
  enum class As : std::uint8_t { kRows, kColumns };

  // What comes of the load, as long as it is row by row. False where a row is seen.
  bool follow() {
    made_ = {{load_.result, As::kRows}};
    bool unseen = true;
    for (std::size_t before = 0; unseen && before != made_.size();) {
      before = made_.size();
      for_each_op(agent_.body, [&](const Op& op) { unseen = unseen && takes(op); });
    }
    return unseen;
  }

  bool takes(const Op& op) {
    for (std::size_t i = 0; i < op.operands.size(); ++i) {
      auto made = made_.find(op.operands[i]);
      if (made == made_.end()) continue;
      As as = made->second;
      if (op.code == OpCode::kStore) {
        if (as != As::kRows || op.region->rows != rows_ || !ends_alike(*op.region)) return false;
        continue;
      }
      if (!one_by_one(op, i, as)) return false;
      if (op.code == OpCode::kTranspose) as = as == As::kRows ? As::kColumns : As::kRows;
      // A register that holds them either way is seen.
      if (made_.emplace(op.result, as).first->second != as) return false;
    }
    return true;
  }

  // Whether no row is stored from the load's end on: a store ends where it says, and where its
  // tensor does.
  bool ends_alike(const Region& r) const {
    if (r.row_dim < 0) return false;
    const auto dim = static_cast<std::size_t>(r.row_dim);
    const Expr& whole = program_.tensors[static_cast<std::size_t>(r.tensor)].shape[dim];
    auto ends_at = [&](const Expr& end) {
      return end.has_value() && are_one(distance(r.origin[dim], end), limit_);
    };
    return ends_at(r.row_end) || ends_at(whole);
  }

  // Rows, or columns, of the load that a register has.
  std::int64_t extent(int reg, As as) const {
    const ValueType& type = agent_.values[static_cast<std::size_t>(reg)];
    return as == As::kRows ? type.rows : type.cols;
  }

  // Whether row r of the result, or column r, is the only one that comes of row r of the load.
  bool one_by_one(const Op& op, std::size_t operand, As as) const {
    if (op.result < 0 || extent(op.operands[operand], as) != rows_) return false;
    if (op.code == OpCode::kTranspose) return true;
    if (extent(op.result, as) != rows_) return false;
    switch (op.code) {
      case OpCode::kDot:
      case OpCode::kDotScaled:  // of columns: the sums, the right factor and its scales
        return as == As::kRows ? operand != 2 : operand % 2 == 0;
      case OpCode::kReduce:
        return op.axis == (as == As::kRows ? 1 : 0);
      case OpCode::kColumns:
        return as == As::kRows;
      case OpCode::kUnary:
      case OpCode::kBinary:
      case OpCode::kWhere:
      case OpCode::kCast:
      case OpCode::kCopyValue:
      case OpCode::kBroadcast:
        return true;
      default:
        return false;
    }
  }

  const Program& program_;
  const Agent& agent_;
  const Op& load_;
  Expr limit_;
  std::int64_t rows_;
  std::map<int, As> made_;  // registers whose rows past the limit come of the load's
};

}  // namespace

std::set<const Op*> loads_of_unseen_rows(const Program& program, const Agent& agent) {
  std::set<const Op*> out;
  for_each_op(agent.body, [&](const Op& op) {
    bool limited = op.code == OpCode::kLoad && rows_left(*op.region).has_value();
    if (limited && LimitedLoad(program, agent, op).is_unseen()) out.insert(&op);
  });
  return out;
}

}  // namespace stretto
