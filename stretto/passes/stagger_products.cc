#include "stretto/passes/stagger_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "stretto/ir/op_info.h"
#include "stretto/ir/refuse.h"
#include "stretto/passes/register_uses.h"
#include "stretto/passes/substitute_vars.h"

namespace stretto {
namespace {

// Of a thread, for what two iterations hold, and for that and what is read beside a product; the
// rest are addresses.
constexpr std::int64_t kMostHeldRegisters = 192, kMostWithReads = 216;
constexpr int kLeastSlots = 3;  // one that is multiplied, the next, and one that is being loaded

// What of an iteration comes before its product is issued, the product being last, what may come
// while it is under way, which are slots that its result is not in, and what comes after, at first
// the release of its factors.
struct StaggeredParts {
  Block before, beside, freed, after;
  bool one_by_one = false;  // the next product is issued when this one is complete
  std::set<int> own;        // registers that an iteration writes before it reads them
  std::set<int> slots;      // those of them that stand for slots
};

class StaggeredLoop {
 public:
  StaggeredLoop(const Role& role, const Agent& agent, const Block& body)
      : role_(role), agent_(agent), body_(body) {}

  // Nothing where the loop does not have the form, or an order would change that matters.
  std::optional<StaggeredParts> take() {
    if (!divide() || !has_slots() || !find_own() || !order_holds() || !fits()) return std::nullopt;
    return std::move(parts_);
  }

 private:
  const ValueType& type(int reg) const { return agent_.values[static_cast<std::size_t>(reg)]; }
  const Op& dot() const { return parts_.before.back(); }

  // Slots of factors are released as soon as the product is complete, others at the end, so that
  // what they hold may be read when it is needed.
  bool divide() {
    bool issued = false, awaited = false;
    Block others;
    for (const Op& op : body_) {
      if (op.code == OpCode::kDotAsync) {
        if (std::exchange(issued, true)) return false;
        parts_.before.push_back(op);
      } else if (is_await_all(op)) {
        if (!issued || std::exchange(awaited, true)) return false;
      } else if (op.code == OpCode::kPipeRelease && issued && gets(parts_.before, op.symbol)) {
        if (!awaited) return false;
        parts_.freed.push_back(op);
      } else if (op.code == OpCode::kPipeRelease && issued) {
        others.push_back(op);
      } else if (op.code == OpCode::kPipeGet) {
        (issued ? parts_.beside : parts_.before).push_back(op);
      } else if (op.code == OpCode::kPipeRelease || is_pure(op)) {
        (issued ? parts_.after : parts_.before).push_back(op);
      } else {
        return false;
      }
    }
    parts_.after.insert(parts_.after.end(), others.begin(), others.end());
    return awaited && size_bytes(type(dot().operands[1]).dtype) <= 2;
  }

  static bool gets(const Block& block, int pipe) {
    return std::any_of(block.begin(), block.end(), [&](const Op& op) {
      return op.code == OpCode::kPipeGet && op.symbol == pipe;
    });
  }

  // Two iterations hold slots of a pipe that is got before the product.
  bool has_slots() const {
    return std::all_of(role_.pipes.begin(), role_.pipes.end(), [&](const Pipe& pipe) {
      auto idx = static_cast<int>(&pipe - role_.pipes.data());
      bool before = gets(parts_.before, idx), beside = gets(parts_.beside, idx);
      return !(before && beside) && (!before || pipe.num_slots >= kLeastSlots);
    });
  }

  // False where something outside of the loop looks at such a register.
  bool find_own() {
    std::set<int> seen;
    for (const Block* part : {&parts_.before, &parts_.beside, &parts_.after}) {
      for (const Op& op : *part) {
        RegisterUses uses = uses_of(op);
        bool first = op.result >= 0 && seen.count(op.result) == 0 && op.bodies.empty() &&
                     uses.reads.count(op.result) == 0;
        if (first) parts_.own.insert(op.result);
        if (op.result >= 0 && is_slot(op.result)) parts_.slots.insert(op.result);
        seen.insert(uses.reads.begin(), uses.reads.end());
        seen.insert(uses.writes.begin(), uses.writes.end());
      }
    }
    RegisterUses outside;
    add_outside(agent_.body, outside);
    return std::none_of(parts_.own.begin(), parts_.own.end(), [&](int reg) {
      return outside.reads.count(reg) != 0 || outside.writes.count(reg) != 0;
    });
  }

  void add_outside(const Block& block, RegisterUses& uses) const {
    if (&block == &body_) return;
    for (const Op& op : block) {
      uses.reads.insert(op.operands.begin(), op.operands.end());
      if (op.result >= 0) uses.writes.insert(op.result);
      for (const Block& inner : op.bodies) add_outside(inner, uses);
    }
  }

  // What comes before the next product passes what comes after this one, and meets the product
  // itself, which reads its factors until it is complete.
  bool order_holds() const {
    RegisterUses before, after, product = uses_of(dot());
    for (std::size_t i = 0; i + 1 < parts_.before.size(); ++i) add_uses(parts_.before[i], before);
    for (const Block* part : {&parts_.beside, &parts_.after}) {
      for (const Op& op : *part) add_uses(op, after);
    }
    for (RegisterUses* uses : {&before, &after, &product}) {
      for (auto* regs : {&uses->reads, &uses->writes}) {
        std::erase_if(*regs, [&](int reg) { return parts_.own.count(reg) != 0; });
      }
    }
    return !before.touches(after) && !before.touches(product) && !product.touches(before) &&
           !product.touches(after) && !after.touches(product);
  }

  // Accumulators, sums, and two of what an iteration passes to its product or from it. Where a row
  // of scales beside them would be too much, it is read when the product is complete, in part while
  // the next one is issued (codegen/spread_text.cc).
  bool fits() {
    std::int64_t cells = 0;
    std::set<int> tiles = {dot().result, dot().operands[0], dot().operands[1]};
    for (const Op& op : parts_.after) {
      if (op.result >= 0 && parts_.own.count(op.result) == 0) tiles.insert(op.result);
    }
    for (int reg : tiles) {
      bool zero = reg == dot().operands[0] && reg != dot().result;
      if (zero || is_slot(reg)) continue;
      std::int64_t copies = parts_.own.count(reg) != 0 ? 2 : 1;
      cells += copies * registers_of(role_, type(reg));
    }
    std::int64_t reads = 0;
    for (const Op& op : parts_.beside) reads += registers_of_read(type(op.result));
    parts_.one_by_one = cells + reads > kMostWithReads;
    return cells <= kMostHeldRegisters;
  }

  // Of a row's columns each of four threads has some, and all of them what is the row's.
  std::int64_t registers_of_read(const ValueType& read) const {
    constexpr std::int64_t kThreads = 4;
    if (read.rows == 1) return ceil_div(read.cols, kThreads);
    return registers_of(role_, {read.dtype, read.rows, std::max(read.cols, kThreads)});
  }

  bool is_slot(int reg) const {
    return std::any_of(body_.begin(), body_.end(), [&](const Op& op) {
      bool view = op.code == OpCode::kTranspose && op.result == reg;
      return (op.code == OpCode::kPipeGet && op.result == reg) || (view && is_slot(op.operands[0]));
    });
  }

  const Role& role_;
  const Agent& agent_;
  const Block& body_;
  StaggeredParts parts_;
};

// Products that are issued one after the other before the last is awaited. The assembler stops
// where one is still under way when the next round of a loop begins, unless nobody but products
// reads it; so every round ends with none, and is made as long as compiling allows
// (docs/performance/fp8.md, 'Why the defaults are what they are'). Eights keep slots constants
// (codegen/fixed_rings.h).
constexpr std::int64_t kMostTogether = 16, kTogether = 8, kLeastTogether = 4;

// How many of so many iterations a round takes.
std::int64_t together(const Expr& trips) {
  if (!trips.is_const()) return kTogether;
  const std::int64_t count = trips.const_value();
  if (count < kTogether) return count;
  for (std::int64_t n = kMostTogether; n > kTogether; n -= kTogether) {
    if (count % n == 0) return n;
  }
  for (std::int64_t n = kTogether; n >= kLeastTogether; --n) {
    if (count % n == 0) return n;
  }
  return kTogether;
}

class Staggerer {
 public:
  Staggerer(Program& program, const Role& role, Agent& agent)
      : program_(program), role_(role), agent_(agent) {}

  // Whether a loop had the form for it.
  bool run() {
    stagger(agent_.body);
    return any_;
  }

 private:
  void stagger(Block& block) {
    Block out;
    for (Op& op : block) {
      std::optional<StaggeredParts> parts;
      if (op.code == OpCode::kLoop && together(op.exprs[1] - op.exprs[0]) > 1) {
        parts = StaggeredLoop(role_, agent_, op.bodies[0]).take();
      }
      if (parts) {
        append_pipelined(op, *parts, out);
        any_ = true;
        continue;
      }
      for (Block& body : op.bodies) stagger(body);
      out.push_back(std::move(op));
    }
    block = std::move(out);
  }

  // Registers of iteration `n` of a round: values alternate, slots have a name each.
  void choose_registers(const StaggeredParts& parts, std::int64_t n) {
    now_.clear();
    for (int reg : parts.own) {
      std::int64_t set = parts.slots.count(reg) != 0 ? n : n % 2;
      if (set == 0) continue;
      auto [entry, added] = copies_.try_emplace({reg, set}, static_cast<int>(agent_.values.size()));
      if (added) agent_.values.push_back(ValueType(agent_.values[static_cast<std::size_t>(reg)]));
      now_[reg] = entry->second;
    }
  }

  // `part` of iteration `n` of the round that begins with iteration `first`.
  void append(Block& out, const StaggeredParts& parts, const Block& part, const Op& loop,
              const Expr& first, std::int64_t n) {
    choose_registers(parts, n);
    Block copy = part;
    std::vector<Expr> replacement(program_.vars.size());
    replacement[static_cast<std::size_t>(loop.var)] = first + n;
    substitute_vars(copy, replacement);
    rename(copy);
    out.insert(out.end(), copy.begin(), copy.end());
  }

  void rename(Block& block) const {
    auto now = [&](int& reg) {
      auto found = now_.find(reg);
      if (found != now_.end()) reg = found->second;
    };
    for (Op& op : block) {
      if (op.result >= 0) now(op.result);
      for (int& reg : op.operands) now(reg);
      for (Block& body : op.bodies) rename(body);
    }
  }

  // What is read beside a product is read before the next one is issued: reads of shared memory
  // stand behind the matrix instructions in one queue, and would come when that product has begun
  // to end.
  void append_round(Block& out, const StaggeredParts& parts, const Op& loop, const Expr& first,
                    std::int64_t num) {
    const Block slots(parts.before.begin(), parts.before.end() - 1),
        product = {parts.before.back()};
    auto put = [&](const Block& part, std::int64_t n) {
      if (n >= 0) append(out, parts, part, loop, first, n);
    };
    auto complete = [&](std::int64_t n, std::int64_t under_way) {
      if (n < 0) return;
      out.push_back(await(under_way, loop.loc));
      put(parts.freed, n);
    };
    for (std::int64_t n = 0; n < num; ++n) {
      if (parts.one_by_one) {
        complete(n - 1, 0);
        put(parts.beside, n - 1);
        put(slots, n);
        put(product, n);
      } else {
        put(slots, n);
        put(parts.beside, n - 1);
        put(product, n);
        complete(n - 1, 1);
      }
      put(parts.after, n - 1);
    }
    if (!parts.one_by_one) put(parts.beside, num - 1);
    complete(num - 1, 0);
    if (parts.one_by_one) put(parts.beside, num - 1);
    put(parts.after, num - 1);
  }

  void append_pipelined(const Op& loop, const StaggeredParts& parts, Block& out) {
    copies_.clear();
    const Expr &begin = loop.exprs[0], trips = loop.exprs[1] - begin;
    const std::int64_t num = together(trips);
    Expr rounds = max(trips, 0) / num;
    Op round = loop;
    round.exprs = {0, rounds};
    round.bodies[0].clear();
    append_round(round.bodies[0], parts, loop, begin + Expr::var(loop.var) * num, num);
    if (in_turn(parts)) number_stages(round.bodies[0]);
    out.push_back(std::move(round));
    Expr left = begin + rounds * num;
    if (!trips.is_const()) {
      out.push_back(rest(loop, left));
    } else if (trips.const_value() % num != 0) {
      append_round(out, parts, loop, left, trips.const_value() % num);
    }
  }

  bool in_turn(const StaggeredParts& parts) const {
    bool same_sums = parts.own.count(parts.before.back().result) == 0;
    return same_sums || role_.resource.products == ProductOrder::kAheadInTurn;
  }

  // What the generated code takes as a pipeline whose products warpgroups issue in turn.
  static void number_stages(Block& round) {
    int issued = 0;
    for (Op& op : round) {
      if (op.code == OpCode::kDotAsync) op.stage = issued++;
    }
  }

  // The loop from `begin` on, as it was.
  Op rest(const Op& loop, const Expr& begin) {
    Op out = loop;
    out.exprs[0] = begin;
    Var var = program_.vars[static_cast<std::size_t>(loop.var)];
    var.name += "_rest";
    out.var = static_cast<int>(program_.vars.size());
    program_.vars.push_back(std::move(var));
    std::vector<Expr> replacement(program_.vars.size());
    replacement[static_cast<std::size_t>(loop.var)] = Expr::var(out.var);
    substitute_vars(out.bodies[0], replacement);
    return out;
  }

  Program& program_;
  const Role& role_;
  Agent& agent_;
  std::map<std::pair<int, std::int64_t>, int> copies_;  // by register and set
  std::map<int, int> now_;  // of the iteration that is being written, by the loop's register
  bool any_ = false;
};

// Whether the tensor core makes it (ir/value_plan.h: DotKind::kWgmma).
bool is_matrix_product(const ValueType& a, const ValueType& b) {
  const std::int64_t step = size_bytes(a.dtype) == 1 ? 32 : 16;
  return a.dtype == b.dtype && is_float(a.dtype) && size_bytes(a.dtype) <= 2 &&
         a.cols % step == 0 && b.cols % 8 == 0 && b.cols <= 256;
}

// Whether several warpgroups share products that the tensor core makes of slots, in a loop.
bool shares_products(const Role& role, const Agent& agent, const Block& block, bool in_loop) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    auto type = [&](int reg) { return agent.values[static_cast<std::size_t>(reg)]; };
    bool product = in_loop && op.code == OpCode::kDotAsync &&
                   is_matrix_product(type(op.operands[1]), type(op.operands[2])) &&
                   warpgroups_of(role, type(op.result)) > 1;
    return product || std::any_of(op.bodies.begin(), op.bodies.end(), [&](const Block& body) {
             return shares_products(role, agent, body, in_loop || op.code == OpCode::kLoop);
           });
  });
}

// An order among warpgroups is one of several, and of products that they all make at the same time.
void check_sharing(const Program& program, const Role& role) {
  const Resource& asked = role.resource;
  bool in_turn =
      asked.products == ProductOrder::kInTurn || asked.products == ProductOrder::kAheadInTurn;
  if (asked.stagger == 0 && !in_turn) return;
  bool shared = std::any_of(role.agents.begin(), role.agents.end(), [&](const Agent& agent) {
    return agent.kind == AgentKind::kConsumer && shares_products(role, agent, agent.body, false);
  });
  if (shared) return;
  const char* reason =
      "it has no loop with products of 16 or 8 bits by matrix instructions (of 16 or 32 columns of "
      "the left factor) that several warpgroups of an agent share, 64 rows each";
  if (asked.stagger > 0) refuse(program, role, "stagger", asked.stagger, reason);
  refuse(program, role, {"products", name(asked.products)}, reason);
}

}  // namespace

Program stagger_products(Program program) {
  for (Role& role : program.roles) {
    check_sharing(program, role);
    ProductOrder products = role.resource.products;
    if (products == ProductOrder::kInTurn || products == ProductOrder::kAwaited) continue;
    bool any = false;
    for (Agent& agent : role.agents) {
      if (agent.kind != AgentKind::kConsumer) continue;
      any |= Staggerer(program, role, agent).run();
    }
    if (products == ProductOrder::kAheadInTurn && !any) {
      refuse(program, role, {"products", name(products)},
             "no loop has one product that its threads take further, slots enough for two and "
             "registers for both");
    }
  }
  return program;
}

}  // namespace stretto
