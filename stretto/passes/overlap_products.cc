#include "stretto/passes/overlap_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "stretto/passes/register_uses.h"
#include "stretto/passes/substitute_vars.h"

namespace stretto {
namespace {

// The body of a loop, taken apart.
struct Parts {
  Block head;         // what the first product needs, and the product
  Block first_free;   // releases of its slots
  Block early, late;  // in between: independent of the second product, and what it waits for
  Block second;       // its slots and the product
  Block second_free;  // releases of its slots
};

class LoopParts {
 public:
  explicit LoopParts(const Block& body) : body_(body), uses_(body.size()) {
    for (std::size_t i = 0; i < body.size(); ++i) add_uses(body[i], uses_[i]);
  }

  // Nothing where the loop does not have the form, or an order would change that matters.
  std::optional<Parts> take() {
    if (!find_products() || !slots_feed_products()) return std::nullopt;
    divide();
    if (!order_holds()) return std::nullopt;
    return std::move(parts_);
  }

 private:
  bool find_products() {
    std::vector<std::size_t> dots;
    for (std::size_t i = 0; i < body_.size(); ++i) {
      const Op& op = body_[i];
      if (op.code == OpCode::kDotAsync) dots.push_back(i);
      bool known = op.code == OpCode::kDotAsync || op.code == OpCode::kPipeGet ||
                   op.code == OpCode::kPipeRelease || is_await_all(op) || is_pure(op);
      if (!known) return false;
    }
    if (dots.size() != 2) return false;
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
      for (int reg : uses_of(op).reads) {
        if (slots.count(reg) != 0) return false;
      }
    }
    return true;
  }

  // Late is what the second product reads from registers or what reads its result.
  void divide() {
    parts_.head.assign(body_.begin(), body_.begin() + static_cast<std::ptrdiff_t>(first_) + 1);
    const std::set<int>& wanted = uses_[second_].reads;
    std::set<int> after = {body_[second_].result};
    for (std::size_t i = first_ + 1; i < body_.size(); ++i) {
      const Op& op = body_[i];
      if (op.code == OpCode::kAwait) continue;
      auto any_of = [](const std::set<int>& regs, const std::set<int>& in) {
        return std::any_of(regs.begin(), regs.end(), [&](int r) { return in.count(r) != 0; });
      };
      bool feeds = any_of(uses_[i].writes, wanted);
      if (op.code == OpCode::kPipeRelease) {
        (i < second_ ? parts_.first_free : parts_.second_free).push_back(op);
      } else if (i == second_ || op.code == OpCode::kPipeGet ||
                 (op.code == OpCode::kTranspose && feeds && is_slot_[op.operands[0]])) {
        parts_.second.push_back(op);
        second_at_.push_back(i);
        if (op.code != OpCode::kDotAsync) is_slot_[op.result] = true;
      } else if (feeds || any_of(uses_[i].reads, after)) {
        parts_.late.push_back(op);
        late_at_.push_back(i);
        after.insert(uses_[i].writes.begin(), uses_[i].writes.end());
      } else {
        parts_.early.push_back(op);
        early_at_.push_back(i);
      }
    }
  }

  // Early operations pass late ones and the second product that stood before them; the second
  // product passes the head of the next iteration, of which it must not share a pipe.
  bool order_holds() const {
    for (std::size_t s : second_at_) {
      for (std::size_t h = 0; h <= first_; ++h) {
        if (uses_[s].touches(uses_[h])) return false;
        bool slots = body_[s].code == OpCode::kPipeGet && body_[h].code == OpCode::kPipeGet;
        if (slots && body_[s].symbol == body_[h].symbol) return false;
      }
    }
    for (std::size_t e : early_at_) {
      for (std::size_t l : late_at_) {
        if (l < e && uses_[l].touches(uses_[e])) return false;
      }
      for (std::size_t s : second_at_) {
        if (uses_[s].touches(uses_[e]) || uses_[e].touches(uses_[s])) return false;
      }
    }
    return late_at_.empty() || late_at_.back() < second_;
  }

  const Block& body_;
  std::vector<RegisterUses> uses_;  // by operation
  Parts parts_;
  std::size_t first_ = 0, second_ = 0;
  std::vector<std::size_t> early_at_, late_at_, second_at_;
  std::map<int, bool> is_slot_;  // registers of the second product that are slots
};

// With the loop's counter replaced.
Block at(Block block, const Op& loop, const Expr& counter, std::size_t num_vars) {
  std::vector<Expr> replacement(num_vars);
  replacement[static_cast<std::size_t>(loop.var)] = counter;
  substitute_vars(block, replacement);
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

  // Slots first, then both products one right after the other.
  Op steady = loop;
  steady.exprs[0] = loop.exprs[0] + 1;
  Block& body = steady.bodies[0];
  body.assign(parts.head.begin(), parts.head.end() - 1);
  Block second = at(parts.second, loop, Expr::var(loop.var) - 1, num_vars);
  for (Op& op : second) op.stage = 1;
  body.insert(body.end(), second.begin(), second.end() - 1);
  body.push_back(parts.head.back());
  body.push_back(second.back());
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
