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

// Of a thread of one warpgroup, two, or three, for the sums of two products and two factors: some
// 48 more are what is under way.
constexpr std::int64_t kMostRegisters = 208, kMostRegistersOfTwo = 192, kMostRegistersOfThree = 112;

// The body of a loop, taken apart.
struct Parts {
  Block head;                // what the first product needs, and the product
  Block first_free;          // releases of its slots
  Block early, late;         // in between: independent of the second product, and what it waits for
  std::optional<Op> factor;  // of what is late, what makes a factor that could have a second set
  Block second;              // its slots and the product
  Block second_free;         // releases of its slots
};

class LoopParts {
 public:
  LoopParts(const Role& role, const Agent& agent, const Block& body)
      : role_(role), agent_(agent), body_(body), uses_(body.size()) {
    for (std::size_t i = 0; i < body.size(); ++i) add_uses(body[i], uses_[i]);
  }

  // Nothing where the loop does not have the form, or an order would change that matters.
  std::optional<Parts> take() {
    if (!find_products() || !slots_feed_products()) return std::nullopt;
    divide();
    if (!order_holds()) return std::nullopt;
    if (fits()) take_factor();
    return std::move(parts_);
  }

 private:
  const ValueType& type(int reg) const { return agent_.values[static_cast<std::size_t>(reg)]; }

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

  // What an iteration under a condition reads before it writes it: that stays from one to the next.
  std::set<int> added_to_under_conditions() const {
    std::set<int> kept;
    for (std::size_t i = 0; i < body_.size(); ++i) {
      if (body_[i].code != OpCode::kWhen) continue;
      std::set<int> written = {body_[first_].result};
      for (const Op& op : body_[i].bodies[0]) {
        RegisterUses uses = uses_of(op);
        for (int reg : uses.reads) {
          if (written.count(reg) == 0 && uses_[i].writes.count(reg) != 0) kept.insert(reg);
        }
        written.insert(uses.writes.begin(), uses.writes.end());
      }
    }
    return kept;
  }

  // Whether threads have registers for both products' sums and two of the second's factor, beside
  // what iterations under a condition add to.
  bool fits() const {
    const Op &first = body_[first_], &second = body_[second_];
    std::int64_t cells = registers_of(role_, type(first.result)) +
                         registers_of(role_, type(second.result)) +
                         2 * registers_of(role_, type(second.operands[1]));
    for (int reg : added_to_under_conditions()) cells += registers_of(role_, type(reg));
    const std::int64_t warpgroups = warpgroups_of(role_, type(second.result));
    return cells <= (warpgroups == 3   ? kMostRegistersOfThree
                     : warpgroups == 2 ? kMostRegistersOfTwo
                                       : kMostRegisters);
  }

  // One operation that makes the factor from what is early, which nothing else looks at.
  void take_factor() {
    int reg = body_[second_].operands[1];
    std::size_t writers = 0, readers = 0;
    for (const RegisterUses& uses : uses_) {
      writers += uses.writes.count(reg);
      readers += uses.reads.count(reg);
    }
    if (writers != 1 || readers != 1 || is_slot_.count(reg) != 0) return;
    for (std::size_t l = 0; l < late_at_.size(); ++l) {
      const RegisterUses& uses = uses_[late_at_[l]];
      if (uses.writes.count(reg) == 0) continue;
      if (body_[late_at_[l]].result != reg || uses.reads.count(body_[second_].result) != 0) return;
      for (std::size_t before = 0; before < l; ++before) {
        if (uses_[late_at_[before]].touches(uses)) return;
      }
      parts_.factor = parts_.late[l];
      parts_.late.erase(parts_.late.begin() + static_cast<std::ptrdiff_t>(l));
      return;
    }
  }

  const Role& role_;
  const Agent& agent_;
  const Block& body_;
  std::vector<RegisterUses> uses_;  // by operation
  Parts parts_;
  std::size_t first_ = 0, second_ = 0;
  std::vector<std::size_t> early_at_, late_at_, second_at_;
  std::map<int, bool> is_slot_;  // registers of the second product that are slots
};

class Overlapper {
 public:
  Overlapper(Program& program, const Role& role, Agent& agent)
      : program_(program), role_(role), agent_(agent) {}

  void run() { overlap(agent_.body); }

 private:
  void overlap(Block& block) {
    for (Op& op : block) {
      if (op.code == OpCode::kLoop) {
        if (std::optional<Parts> parts = LoopParts(role_, agent_, op.bodies[0]).take()) {
          op = pipelined(op, *parts);
          continue;
        }
      }
      for (Block& body : op.bodies) overlap(body);
    }
  }

  // With the loop's counter replaced.
  Block at(Block block, const Op& loop, const Expr& counter) const {
    std::vector<Expr> replacement(program_.vars.size());
    replacement[static_cast<std::size_t>(loop.var)] = counter;
    substitute_vars(block, replacement);
    return block;
  }

  // The first product of iteration `now` and the second of the one before. The factor of the one
  // before is in register `from`, that of this one comes into `to`: while products are under way,
  // where that is another one, else when they are complete.
  Block step(const Op& loop, const Parts& parts, const Expr& now, int from, int to) const {
    Block body(parts.head.begin(), parts.head.end() - 1);
    body = at(std::move(body), loop, now);
    Block second = at(parts.second, loop, now - 1);
    for (Op& op : second) op.stage = 1;
    // Slots first, then both products one right after the other.
    append(body, {second.begin(), second.end() - 1});
    append(body, at({parts.head.back()}, loop, now));
    body.push_back(second.back());
    if (parts.factor) body.back().operands[1] = from;
    body.push_back(await(1, loop.loc));
    append(body, at(parts.first_free, loop, now));
    append(body, at(parts.early, loop, now));
    if (from != to) append(body, at(factor(parts, to), loop, now));
    body.push_back(await(0, loop.loc));
    append(body, at(parts.second_free, loop, now - 1));
    if (from == to) append(body, at(factor(parts, to), loop, now));
    append(body, at(parts.late, loop, now));
    return body;
  }

  static Block factor(const Parts& parts, int to) {
    if (!parts.factor) return {};
    Op op = *parts.factor;
    op.result = to;
    return {op};
  }

  // Iterations first + 1 to end, in pairs where there are two registers for the factor, and what is
  // left of them.
  Block steady(const Op& loop, const Parts& parts, const Expr& first, const Expr& end) {
    Op steps = loop;
    const int reg = parts.second.back().operands[1];
    if (!parts.factor) {
      steps.exprs[0] = first + 1;
      steps.bodies[0] = step(loop, parts, Expr::var(loop.var), reg, reg);
      return {steps};
    }
    int other = another(reg);
    Expr pairs = (end - first - 1) / 2;
    steps.exprs = {0, pairs};
    Expr now = first + 1 + Expr::var(loop.var) * 2;
    steps.bodies[0] = step(loop, parts, now, reg, other);
    Block second = step(loop, parts, now + 1, other, reg);
    name_slots(second);
    append(steps.bodies[0], second);
    Op last = loop;
    last.var = static_cast<int>(program_.vars.size());
    Var var = program_.vars[static_cast<std::size_t>(loop.var)];
    var.name += "_last";
    program_.vars.push_back(std::move(var));
    last.exprs[0] = first + 1 + pairs * 2;
    last.bodies[0] = step(loop, parts, Expr::var(last.var), reg, reg);
    return {steps, last};
  }

  int another(int reg) {
    agent_.values.push_back(ValueType(agent_.values[static_cast<std::size_t>(reg)]));
    return static_cast<int>(agent_.values.size()) - 1;
  }

  // Registers that stand for slots have one meaning in a block.
  void name_slots(Block& block) {
    std::map<int, int> names;
    for (Op& op : block) {
      for (int& reg : op.operands) {
        if (auto found = names.find(reg); found != names.end()) reg = found->second;
      }
      bool view = op.code == OpCode::kTranspose && names_slot(op.operands[0], names);
      if (op.code != OpCode::kPipeGet && !view) continue;
      op.result = names[op.result] = another(op.result);
    }
  }

  static bool names_slot(int reg, const std::map<int, int>& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& entry) { return entry.second == reg; });
  }

  Op pipelined(const Op& loop, const Parts& parts) {
    const Expr &begin = loop.exprs[0], &end = loop.exprs[1];
    Op any{.code = OpCode::kWhen, .exprs = {begin < end}, .loc = loop.loc};
    any.bodies = {at(parts.head, loop, begin), Block{}};
    Block& then = any.bodies[0];
    then.push_back(await(0, loop.loc));
    append(then, at(parts.first_free, loop, begin));
    append(then, at(parts.early, loop, begin));
    append(then, at(factor(parts, parts.second.back().operands[1]), loop, begin));
    append(then, at(parts.late, loop, begin));
    append(then, steady(loop, parts, begin, end));
    append(then, at(parts.second, loop, end - 1));
    then.push_back(await(0, loop.loc));
    append(then, at(parts.second_free, loop, end - 1));
    return any;
  }

  static void append(Block& to, const Block& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  Program& program_;
  const Role& role_;
  Agent& agent_;
};

}  // namespace

Program overlap_products(Program program) {
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) {
      if (agent.kind == AgentKind::kConsumer) Overlapper(program, role, agent).run();
    }
  }
  return program;
}

}  // namespace stretto
