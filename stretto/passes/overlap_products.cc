#include "stretto/passes/overlap_products.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace stretto {
namespace {

bool contains(const std::vector<int>& regs, int reg) {
  return std::find(regs.begin(), regs.end(), reg) != regs.end();
}
bool reads(const Op& op, int reg) { return contains(op.operands, reg); }

// The body of a loop, taken apart.
struct Parts {
  Block head;         // what the first product needs, and the product
  Block first_free;   // releases of its slots
  Block early, late;  // in between: independent of the second product, and what it waits for
  Block second;       // its slots and the product
  Block second_free;  // releases of its slots
};

bool is_await_all(const Op& op) { return op.code == OpCode::kAwait && op.exprs[0].is_const(0); }

class LoopParts {
 public:
  explicit LoopParts(const Block& body) : body_(body) {}

  // Nothing where the loop does not have the form, or an order would change that matters.
  std::optional<Parts> take() {
    if (!find_products()) return std::nullopt;
    mark_head();
    if (!head_is_free()) return std::nullopt;
    mark_late();
    if (!order_holds()) return std::nullopt;
    return std::move(parts_);
  }

 private:
  bool find_products() {
    std::vector<std::size_t> dots;
    for (std::size_t i = 0; i < body_.size(); ++i) {
      const Op& op = body_[i];
      if (!op.bodies.empty() || op.code == OpCode::kDot || op.code == OpCode::kNotify ||
          op.code == OpCode::kWait) {
        return false;
      }
      if (op.code == OpCode::kDotAsync) dots.push_back(i);
      if (op.code == OpCode::kAwait && !is_await_all(op)) return false;
    }
    if (dots.size() != 2 || !slots_feed_products()) return false;
    first_ = dots[0];
    second_ = dots[1];
    return body_[first_].result != body_[second_].result;
  }

  // A slot is released once its product is complete, so nothing else may look at it.
  bool slots_feed_products() const {
    std::set<int> slots;
    for (const Op& op : body_) {
      bool view = op.code == OpCode::kTranspose && slots.count(op.operands[0]) != 0;
      if (op.code == OpCode::kPipeGet || view) slots.insert(op.result);
      if (view || op.code == OpCode::kDotAsync) continue;
      for (int reg : op.operands) {
        if (slots.count(reg) != 0) return false;
      }
    }
    return true;
  }

  // Backwards from the first product: what writes its operands.
  void mark_head() {
    std::vector<int> needed = body_[first_].operands;
    in_head_.assign(body_.size(), false);
    in_head_[first_] = true;
    for (std::size_t i = first_; i-- > 0;) {
      if (body_[i].result < 0 || !contains(needed, body_[i].result)) continue;
      in_head_[i] = true;
      needed.insert(needed.end(), body_[i].operands.begin(), body_[i].operands.end());
    }
  }

  // Everything before the first product belongs to it, and it reads nothing that a later operation
  // of an iteration writes.
  bool head_is_free() const {
    for (std::size_t i = 0; i < first_; ++i) {
      if (!in_head_[i]) return false;
    }
    for (std::size_t i = first_ + 1; i < body_.size(); ++i) {
      if (body_[i].result < 0) continue;
      for (std::size_t h = 0; h <= first_; ++h) {
        if (reads(body_[h], body_[i].result) || body_[h].result == body_[i].result) return false;
      }
    }
    return true;
  }

  void mark_late() {
    const Op& second = body_[second_];
    parts_.head.assign(body_.begin(), body_.begin() + static_cast<std::ptrdiff_t>(first_) + 1);
    std::set<int> late_regs(second.operands.begin(), second.operands.end());
    std::set<int> tainted = {second.result};
    for (std::size_t i = first_ + 1; i < body_.size(); ++i) {
      const Op& op = body_[i];
      if (op.code == OpCode::kAwait) continue;
      if (op.code == OpCode::kPipeRelease) {
        (i < second_ ? parts_.first_free : parts_.second_free).push_back(op);
      } else if (i == second_ || (late_regs.count(op.result) != 0 &&
                                  (op.code == OpCode::kPipeGet || op.code == OpCode::kTranspose))) {
        parts_.second.push_back(op);
        second_slots_.insert(op.result);
      } else if (late_regs.count(op.result) != 0 ||
                 std::any_of(op.operands.begin(), op.operands.end(),
                             [&](int reg) { return tainted.count(reg) != 0; })) {
        parts_.late.push_back(op);
        late_at_.push_back(i);
        if (op.result >= 0) tainted.insert(op.result);
      } else {
        parts_.early.push_back(op);
        early_at_.push_back(i);
      }
    }
  }

  // Early operations move before late ones that stood before them, and the second product moves
  // past all operations of the next iteration up to its await.
  bool order_holds() const {
    for (std::size_t e : early_at_) {
      const Op& early = body_[e];
      if (early.result >= 0 && reads(body_[second_], early.result)) return false;
      for (int reg : early.operands) {
        if (second_slots_.count(reg) != 0) return false;
      }
      for (std::size_t l : late_at_) {
        if (l > e) continue;
        const Op& late = body_[l];
        if (early.result >= 0 && (reads(late, early.result) || late.result == early.result)) {
          return false;
        }
        if (late.result >= 0 && reads(early, late.result)) return false;
      }
    }
    for (std::size_t l : late_at_) {  // after the second product: would run before it
      if (l > second_) return false;
    }
    return true;
  }

  const Block& body_;
  Parts parts_;
  std::size_t first_ = 0, second_ = 0;
  std::vector<bool> in_head_;
  std::vector<std::size_t> early_at_, late_at_;
  std::set<int> second_slots_;
};

void substitute(Block& block, const std::vector<Expr>& replacement) {
  auto apply = [&](Expr& e) {
    if (e.has_value()) e = substitute(e, replacement);
  };
  for (Op& op : block) {
    for (Expr& e : op.exprs) apply(e);
    for (auto* region : {&op.region, &op.region2}) {
      if (!region->has_value()) continue;
      for (Expr& e : (*region)->origin) apply(e);
      apply((*region)->rank);
      apply((*region)->row_end);
      apply((*region)->col_end);
    }
    for (Block& body : op.bodies) substitute(body, replacement);
  }
}

Op await(std::int64_t keep, const SourceLoc& loc) {
  return {.code = OpCode::kAwait, .exprs = {keep}, .loc = loc};
}

// With the loop's counter replaced.
Block at(Block block, const Op& loop, const Expr& counter, std::size_t num_vars) {
  std::vector<Expr> replacement(num_vars);
  replacement[static_cast<std::size_t>(loop.var)] = counter;
  substitute(block, replacement);
  return block;
}

void append(Block& to, const Block& from) { to.insert(to.end(), from.begin(), from.end()); }

Op pipelined(const Op& loop, const Parts& parts, std::size_t num_vars) {
  const SourceLoc& loc = loop.loc;
  Block first;  // iteration `begin`, up to its second product
  append(first, parts.head);
  first.push_back(await(0, loc));
  append(first, parts.first_free);
  append(first, parts.early);
  append(first, parts.late);
  first = at(std::move(first), loop, loop.exprs[0], num_vars);

  Op steady = loop;
  steady.exprs[0] = loop.exprs[0] + 1;
  Block& body = steady.bodies[0];
  body.clear();
  append(body, parts.head);
  append(body, at(parts.second, loop, Expr::var(loop.var) - 1, num_vars));
  body.push_back(await(1, loc));
  append(body, parts.first_free);
  append(body, parts.early);
  body.push_back(await(0, loc));
  append(body, parts.second_free);
  append(body, parts.late);

  Op any{.code = OpCode::kWhen, .exprs = {loop.exprs[0] < loop.exprs[1]}, .loc = loc};
  any.bodies = {std::move(first), Block{}};
  Block& then = any.bodies[0];
  then.push_back(std::move(steady));
  append(then, at(parts.second, loop, loop.exprs[1] - 1, num_vars));
  then.push_back(await(0, loc));
  append(then, parts.second_free);
  return any;
}

void overlap(Block& block, std::size_t num_vars) {
  for (Op& op : block) {
    if (op.code == OpCode::kLoop) {
      if (std::optional<Parts> parts = LoopParts(op.bodies[0]).take()) {
        op = pipelined(op, *parts, num_vars);
        continue;
      }
    }
    for (Block& body : op.bodies) overlap(body, num_vars);
  }
}

}  // namespace

Program overlap_products(Program program) {
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) {
      if (agent.kind == AgentKind::kConsumer) overlap(agent.body, program.vars.size());
    }
  }
  return program;
}

}  // namespace stretto
