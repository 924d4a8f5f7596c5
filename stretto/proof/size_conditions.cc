#include "stretto/proof/size_conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "stretto/ir/block_ops.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/size_masks.h"

namespace stretto {
namespace {

bool is_packet(const Op& op) {
  return op.code == OpCode::kStorePacket || op.code == OpCode::kLoadPacket;
}

// Others count on it. Of packets nobody does but where they meet at all sizes (packet_links.h).
bool settles(const Op& op) {
  return op_info(op.code).synchronises && op.code != OpCode::kWait && op.code != OpCode::kFence &&
         !passes_slot(op) && !is_packet(op);
}

bool has_to_happen(const Block& block) { return any_op(block, settles); }
bool has_packets(const Block& block) { return any_op(block, is_packet); }

bool waits(const Block& block, bool under_condition) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    if (op.code == OpCode::kWait) return under_condition;
    bool condition = under_condition || op.code == OpCode::kWhen;
    return std::any_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return waits(body, condition); });
  });
}

void variables_set(const Block& block, std::set<int>& vars) {
  for (const Op& op : block) {
    if (op.code == OpCode::kLet) vars.insert(op.var);
    for (const Block& body : op.bodies) variables_set(body, vars);
  }
}

bool uses_any(const Op& op, const std::set<int>& vars) {
  bool used = false;
  for_each_expr(op, [&](const Expr& e) { used |= stretto::uses_any(e, vars); });
  return used;
}

bool used_beside(const Block& block, const Op& when, const std::set<int>& vars) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    if (&op == &when) return false;
    return uses_any(op, vars) ||
           std::any_of(op.bodies.begin(), op.bodies.end(),
                       [&](const Block& body) { return used_beside(body, when, vars); });
  });
}

}  // namespace

bool waits_under_condition(const Role& role) {
  return std::any_of(role.agents.begin(), role.agents.end(),
                     [](const Agent& agent) { return waits(agent.body, false); });
}

// What is set under a condition keeps its value beyond it, unless nobody asks. Slots of a ring that
// pipes share follow each other as they were put, unless they are passed in runs alone.
bool SizeConditions::may_be_open(const Op& when) {
  auto [it, is_new] = may_be_open_.try_emplace(&when);
  Openness& known = it->second;
  auto settled = [&](const Block& body) { return has_to_happen_here(body, known.vars); };
  if (!is_new) return known.may && !(known.settles && std::ranges::any_of(when.bodies, settled));
  const AgentTrace& agent = state_.recorder.agent();
  if (agent.phase != Phase::kRoles) return false;
  const Role& role = state_.program.roles[static_cast<std::size_t>(agent.role)];
  std::vector<int> rings = rings_of(role);
  bool shares = std::any_of(rings.begin(), rings.end(), [](int ring) { return ring >= 0; });
  if (shares) {
    shares = !std::ranges::all_of(
        when.bodies, [&](const Block& body) { return runs_.has_all_slots_of(role, body); });
  }
  for (const Block& body : when.bodies) variables_set(body, known.vars);
  const Block& whole = role.agents[static_cast<std::size_t>(agent.agent)].body;
  bool decided = state_.region->waits_open() == WaitsOpen::kNone && waits_under_condition(role);
  known.settles = std::any_of(when.bodies.begin(), when.bodies.end(), has_to_happen);
  known.may = !shares && !decided && (known.vars.empty() || !used_beside(whole, when, known.vars));
  return may_be_open(when);
}

// As has_to_happen(), without what a condition leaves out that is the same at all sizes.
bool SizeConditions::has_to_happen_here(const Block& block, const std::set<int>& set_within) {
  return std::ranges::any_of(block, [&](const Op& op) {
    if (op.bodies.empty()) return settles(op);
    bool told = op.code == OpCode::kWhen && !stretto::uses_any(op.exprs[0], set_within);
    std::optional<SizeForm> holds;
    if (told) holds = state_.scope.open_form(op.exprs[0]);
    if (holds && !holds->is_constant()) holds.reset();
    for (std::size_t b = 0; b < op.bodies.size(); ++b) {
      bool left_out = holds && (holds->value != 0 ? 0u : 1u) != b;
      if (!left_out && has_to_happen_here(op.bodies[b], set_within)) return true;
    }
    return false;
  });
}

bool SizeConditions::tiles_may_be_open(const Role& role) {
  auto [it, is_new] = open_tiles_.try_emplace(&role, false);
  if (!is_new) return it->second;
  std::vector<int> rings = rings_of(role);
  bool shares = std::any_of(rings.begin(), rings.end(), [](int ring) { return ring >= 0; });
  if (shares) {
    shares = !std::ranges::all_of(
        role.agents, [&](const Agent& agent) { return runs_.has_all_slots_of(role, agent.body); });
  }
  auto heard = [&](const Agent& agent) {
    return has_to_happen(agent.body) || has_packets(agent.body) ||
           waits(agent.body, /*under_condition=*/true);
  };
  return it->second = !shares && role.barriers.empty() &&
                      std::none_of(role.agents.begin(), role.agents.end(), heard);
}

std::optional<SizeConditions::Truth> SizeConditions::truth(const Expr& condition) {
  const ExprNode& n = condition.node();
  switch (n.op) {
    case ExprOp::kVar: {
      const Expr* value = state_.scope.deferred(static_cast<int>(n.value));
      return value != nullptr ? truth(*value) : decided_truth(condition);
    }
    case ExprOp::kNot: {
      std::optional<Truth> of = truth(n.args[0]);
      return of ? negated(*of) : std::nullopt;
    }
    case ExprOp::kAnd:
    case ExprOp::kOr: {
      bool settles = n.op == ExprOp::kOr;
      std::optional<Truth> a = truth(n.args[0]), b = truth(n.args[1]);
      if (!a || !b) return std::nullopt;
      if (a->known) return *a->known == settles ? a : b;
      if (b->known) return *b->known == settles ? b : a;
      if (settles) return std::nullopt;
      return both(std::move(a), std::move(b));
    }
    case ExprOp::kLt:
      return less(n.args[0], n.args[1], 0);
    case ExprOp::kLe:
      return less(n.args[0], n.args[1], 1);
    case ExprOp::kEq: {
      bool is_not = n.args[1].is_const(0) && compares(n.args[0]);
      std::optional<Truth> of = is_not ? truth(n.args[0]) : decided_truth(condition);
      return of && is_not ? negated(*of) : of;
    }
    default:
      return decided_truth(condition);
  }
}

// Of a value, or of what a variable will be computed from.
bool SizeConditions::compares(const Expr& expr) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kLt || n.op == ExprOp::kLe) return true;
  if (n.op != ExprOp::kVar) return false;
  const Expr* value = state_.scope.deferred(static_cast<int>(n.value));
  return value != nullptr && compares(*value);
}

std::optional<SizeConditions::Truth> SizeConditions::decided_truth(const Expr& condition) {
  SizeForm value = state_.scope.form(condition);
  if (!value.is_constant()) return std::nullopt;
  return Truth{.known = value.value != 0, .forms = {}};
}

// Where the condition holds at the sample and at most sizes, the others are cut off. All agents of
// the role go by that, so what one of them has left open stays so.
void SizeConditions::decide_if_cheap(std::optional<Truth>& truth) {
  bool asked = state_.region->waits_open() == WaitsOpen::kCostly && truth && !truth->known;
  if (!asked) return;
  const AgentTrace& agent = state_.recorder.agent();
  if (agent.phase != Phase::kRoles) return;
  const Role& role = state_.program.roles[static_cast<std::size_t>(agent.role)];
  auto [waits, is_new] = waits_.try_emplace(&role, false);
  if (is_new) waits->second = waits_under_condition(role);
  if (!waits->second || left_open_.count(key_of(truth->forms)) != 0) return;
  SizeRegion left = *state_.region;
  for (SizeForm form : truth->forms) {
    if (form.value < 1) {
      left_open_.insert(key_of(truth->forms));
      return;
    }
    form.value -= 1;
    left.keep_sign(form);
  }
  constexpr double kLeastLeft = 0.5;
  double part = kept_ * left.num_sizes() / state_.region->num_sizes();
  if (part < kLeastLeft) {
    left_open_.insert(key_of(truth->forms));
    return;
  }
  kept_ = part;
  *state_.region = left;
  truth = Truth{.known = true, .forms = {}};
}

// Launches that have nothing often send one packet all the same, for others to hear of: with them
// in pieces of their own, what all other sizes send is there at all sizes. A piece that is walked
// at zero has no other sizes in it either.
void SizeConditions::decide_if_nothing_is_empty(const Op& when, std::optional<Truth>& truth) {
  if (!truth || truth->known || std::ranges::none_of(when.bodies, has_packets)) return;
  bool at_zero_alone = std::ranges::all_of(truth->forms, [&](const SizeForm& form) {
    return state_.region->positive_but_at_zero(form);
  });
  if (!at_zero_alone) return;
  auto less_one = [](SizeForm form) {
    form.value -= 1;
    return form;
  };
  auto missing = std::ranges::find_if(truth->forms, [](const SizeForm& f) { return f.value < 1; });
  bool holds = missing == truth->forms.end();
  if (holds) {
    for (const SizeForm& form : truth->forms) state_.region->keep_sign(less_one(form));
  } else {
    state_.region->keep_sign(less_one(*missing));
  }
  truth = Truth{.known = holds, .forms = {}};
}

std::optional<SizeConditions::Truth> SizeConditions::negated(const Truth& of) const {
  if (of.known) return Truth{.known = !*of.known, .forms = {}};
  if (of.forms.size() != 1) return std::nullopt;
  SizeForm form{.value = 1 - of.forms[0].value};
  for (std::size_t i = 0; i < form.slope.size(); ++i) form.slope[i] = -of.forms[0].slope[i];
  return Truth{.known = {}, .forms = {form}};
}

// a < b + more, where b may be the least of several.
std::optional<SizeConditions::Truth> SizeConditions::less(const Expr& a, const Expr& b,
                                                          std::int64_t more) {
  SizeForm from = state_.scope.form(a);
  from.value -= more;
  return less_than(from, b);
}

// Without what is so anyway where the rest is.
std::optional<SizeConditions::Truth> SizeConditions::both(std::optional<Truth> a,
                                                          std::optional<Truth> b) const {
  if (!a || !b) return std::nullopt;
  if (a->known) return *a->known ? b : a;
  if (b->known) return *b->known ? a : b;
  auto so_with = [&](const std::vector<SizeForm>& forms, const SizeForm& form) {
    return std::ranges::any_of(
        forms, [&](const SizeForm& x) { return state_.region->positive_with(x, form); });
  };
  std::vector<SizeForm> more;
  for (const SizeForm& form : b->forms) {
    if (!so_with(a->forms, form)) more.push_back(form);
  }
  std::erase_if(a->forms, [&](const SizeForm& form) { return so_with(more, form); });
  a->forms.insert(a->forms.end(), more.begin(), more.end());
  return a;
}

// A number is below x / c where c (number + 1) <= x, and below x c where number / c is below x. So
// a quotient of sizes is not decided.
std::optional<SizeConditions::Truth> SizeConditions::less_than(SizeForm from, const Expr& b) {
  constexpr std::int64_t kSmall = std::int64_t{1} << 30;
  const ExprNode& n = b.node();
  auto constant = [&](std::size_t i) {
    return n.args.size() == 2 && n.args[i].is_const() && n.args[i].const_value() > 0 &&
           n.args[i].const_value() < kSmall;
  };
  bool small = from.is_constant() && from.value > -kSmall && from.value < kSmall;
  if (small && n.op == ExprOp::kMin) {
    return both(less_than(from, n.args[0]), less_than(from, n.args[1]));
  }
  if (small && constant(1)) {
    std::int64_t c = n.args[1].const_value();
    switch (n.op) {
      case ExprOp::kFloorDiv:
        // Blocks of rows are counted by a digit of their own; otherwise the sum tells of more rows.
        if (std::optional<SizeForm> sum = state_.scope.open_form(n.args[0])) {
          std::optional<SizeForm> quotient = state_.region->quotient(*sum, c);
          if (quotient && !state_.region->is_short_of()) return less_than_all(from, {*quotient});
        }
        return less_than({.value = c * (from.value + 1) - 1}, n.args[0]);
      case ExprOp::kMul:
        return less_than({.value = floor_div(from.value, c)}, n.args[0]);
      case ExprOp::kAdd:
        return less_than({.value = from.value - c}, n.args[0]);
      case ExprOp::kSub:
        return less_than({.value = from.value + c}, n.args[0]);
      default:
        break;
    }
  }
  return less_than_all(from, state_.scope.ends_behind(from, b));
}

SizeConditions::Truth SizeConditions::less_than_all(const SizeForm& from,
                                                    const std::vector<SizeForm>& ends) const {
  Truth out{.known = true, .forms = {}};
  for (const SizeForm& end : ends) {
    SizeForm there = state_.region->apply(ExprOp::kSub, end, from);
    if (state_.region->least(there) > 0) continue;
    if (state_.region->most(there) <= 0) return Truth{.known = false, .forms = {}};
    out.known.reset();
    out.forms.push_back(there);
  }
  return out;
}

void SizeConditions::enter(const std::vector<SizeForm>& there) {
  auto& all = state_.there;
  all.insert(all.end(), there.begin(), there.end());
  // In a launch all ranks have the same sizes, so it is the same fact for all agents. Named so that
  // other sizes, of which some agents have fewer, name the others' alike.
  auto [it, is_new] = facts_.try_emplace(key_of(there), -1);
  if (is_new) {
    std::string text =
        fmt::format("sizes, condition {} of agent {}", num_new_++, state_.graph.agents.size());
    it->second = state_.graph.choices->fact(
        {.kind = FactKind::kCondition, .entry = {}, .condition = std::move(text)});
    state_.graph.masks->add_fact(it->second, there);
  }
  entered_.push_back(it->second);
  state_.enter({&entered_.back(), 1});
}

void SizeConditions::leave(const std::vector<SizeForm>& there) {
  state_.there.resize(state_.there.size() - there.size());
  state_.leave({&entered_.back(), 1});
  entered_.pop_back();
}

}  // namespace stretto
