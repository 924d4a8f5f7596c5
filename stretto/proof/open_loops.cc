#include "stretto/proof/open_loops.h"

#include <algorithm>
#include <numeric>

#include "stretto/base/at.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/tables.h"
#include "stretto/proof/loop_fold.h"

namespace stretto {
namespace {

// Of terms: where loops begin and end.
constexpr std::int64_t kBegin = -1, kEnd = -2;

[[noreturn]] void refuse() { throw DependsOnTable{"how often a loop over slots runs"}; }

// What it reads moves in proportion to the loop's variable.
bool moves_straight(const Op& op, const Op* loop) {
  return loop == nullptr || !op.region || is_affine(*op.region, {loop->var});
}

}  // namespace

bool come_through(const InstanceGraph& graph, std::size_t first) {
  std::vector<std::int64_t> value(graph.counters.size(), 0);
  std::vector<std::size_t> next(graph.agents.size(), 0);
  bool moved = true, done = false;
  while (moved && !done) {
    moved = false;
    done = true;
    for (std::size_t a = first; a < graph.agents.size(); ++a) {
      const std::vector<Sync>& syncs = graph.agents[a].syncs;
      while (next[a] < syncs.size()) {
        const Sync& s = syncs[next[a]];
        if (s.kind == SyncKind::kWait && value[at(s.counter)] < s.amount) break;
        if (s.kind == SyncKind::kNotify) value[at(s.counter)] += s.amount;
        ++next[a];
        moved = true;
      }
      done &= next[a] == syncs.size();
    }
  }
  return done;
}

void forget_worker(InstanceGraph& graph, std::size_t num_counters) {
  graph.agents.clear();
  graph.counters.resize(num_counters);
  graph.quota.resize(num_counters);
}

OpenLoops::OpenLoops(ExpandState& state, SyncExpander& syncs, AccessExpander& accesses,
                     TableLoops mode, LoopsShown* shown)
    : state_(state),
      syncs_(syncs),
      accesses_(accesses),
      of_tables_(mode != TableLoops::kNone),
      turns_(mode == TableLoops::kTurns),
      shown_(shown != nullptr ? shown : &own_shown_) {
  bool of_sizes = state.region != nullptr && state.region->loops_open();
  if (!of_sizes && !of_tables_) return;
  const std::vector<Var>& vars = state.program.vars;
  for (std::size_t v = 0; of_sizes && v < vars.size(); ++v) {
    bool size = vars[v].kind == VarKind::kExtent || vars[v].kind == VarKind::kScalar;
    if (size) sized_.insert(static_cast<int>(v));
  }
  std::size_t before = 0;
  do {
    before = sized_.size();
    for (const Role& role : state.program.roles) {
      for (const Agent& agent : role.agents) find_sized(agent.body);
    }
  } while (before != sized_.size());
}

void OpenLoops::find_sized(const Block& block) {
  for (const Op& op : block) {
    bool sets = op.code == OpCode::kLet || op.code == OpCode::kLoop;
    bool sized = std::any_of(op.exprs.begin(), op.exprs.end(),
                             [&](const Expr& e) { return e.has_value() && goes_by_sizes(e); });
    if (sets && sized) sized_.insert(op.var);
    for (const Block& body : op.bodies) find_sized(body);
  }
}

bool OpenLoops::goes_by_sizes(const Expr& expr) const {
  return uses_any(expr, sized_) || (of_tables_ && uses_table(expr));
}

// --- how operations are written ---

bool OpenLoops::fits(const Block& block, const Op* loop, Shape& shape) const {
  auto use = [&](const Op& op) { shape.used.insert(op.operands.begin(), op.operands.end()); };
  return std::all_of(block.begin(), block.end(), [&](const Op& op) {
    use(op);
    switch (op.code) {
      case OpCode::kPipePut:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        if (op.code == OpCode::kPipePut) shape.reads.emplace_back(&op, loop);
        if (op.code == OpCode::kPipeGet) shape.got.insert(op.result);
        (op.code == OpCode::kPipePut ? shape.puts : shape.gets).insert(op.symbol);
        shape.passes += loop != nullptr ? 1 : 0;
        shape.pipes.insert(op.symbol);
        return op.operands.empty() && (of_tables_ || moves_straight(op, loop));
      case OpCode::kLoad:
        shape.reads.emplace_back(&op, loop);
        return of_tables_ || moves_straight(op, loop);
      case OpCode::kLoop:
        shape.loops.push_back(&op);
        return loop == nullptr && fits(op.bodies[0], &op, shape);
      case OpCode::kWhen:
        for_each_op(op.bodies[0], use);
        for_each_op(op.bodies[1], use);
        return is_register_choice(op);
      case OpCode::kLet:
        return of_tables_ && loop != nullptr;
      case OpCode::kAwait:
        return op.exprs[0].is_const();  // what is looked at goes by nothing else
      default:
        return op.bodies.empty() && !op.region && !op_info(op.code).synchronises &&
               op_info(op.code).schedule_level;
    }
  });
}

const OpenLoops::Shape& OpenLoops::shape_of(const Op& op) {
  auto [it, is_new] = shapes_.try_emplace(&op);
  if (!is_new) return it->second;
  Shape& shape = it->second;
  bool sized = false;
  if (op.code == OpCode::kLoop) {
    shape.loops.push_back(&op);
    shape.fits = fits(op.bodies[0], &op, shape);
  } else if (op.code == OpCode::kWhen && op.bodies[1].empty()) {
    shape.fits = fits(op.bodies[0], nullptr, shape) && !shape.loops.empty();
  }
  for (const Op* loop : shape.loops) {
    sized |= goes_by_sizes(loop->exprs[0]) || goes_by_sizes(loop->exprs[1]);
  }
  shape.fits &= sized;
  for (auto [read_op, loop] : shape.reads) {
    shape.fits &= !of_tables_ || reads_own_inputs({*read_op}, state_.program);
  }
  return shape;
}

bool OpenLoops::may_take_part(const Block& block) {
  return std::any_of(block.begin(), block.end(), [&](const Op& op) {
    bool fits = (op.code == OpCode::kLoop || op.code == OpCode::kWhen) && shape_of(op).fits &&
                !shape_of(op).pipes.empty();
    fits = fits || (op.code == OpCode::kLoop && may_take_turns(op));
    return fits || std::any_of(op.bodies.begin(), op.bodies.end(),
                               [&](const Block& body) { return may_take_part(body); });
  });
}

// --- numbers of iterations ---

std::size_t OpenLoops::TermHash::operator()(const Term& t) const {
  auto h = static_cast<std::size_t>(t.op) * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(t.value);
  for (int arg : t.args) h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(arg);
  return h ^ (h >> 29);
}

int OpenLoops::term(const Term& term) {
  if (2 * (terms_.size() + 1) > term_ids_.size()) grow_term_ids();
  const std::size_t mask = term_ids_.size() - 1;
  std::size_t place = TermHash{}(term)&mask;
  for (; term_ids_[place] >= 0; place = (place + 1) & mask) {
    if (terms_[at(term_ids_[place])] == term) return term_ids_[place];
  }
  term_ids_[place] = static_cast<int>(terms_.size());
  terms_.push_back(term);
  return term_ids_[place];
}

void OpenLoops::grow_term_ids() {
  term_ids_.assign(std::max<std::size_t>(64, 2 * term_ids_.size()), -1);
  const std::size_t mask = term_ids_.size() - 1;
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    std::size_t place = TermHash{}(terms_[i]) & mask;
    while (term_ids_[place] >= 0) place = (place + 1) & mask;
    term_ids_[place] = static_cast<int>(i);
  }
}

std::optional<int> OpenLoops::term_of(const Expr& expr) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kConst) return term({ExprOp::kConst, n.value, {}});
  if (n.op == ExprOp::kTable) return term_of_table(n);
  if (n.op == ExprOp::kVar) {
    auto var = static_cast<int>(n.value);
    if (of_tables_ && !state_.scope.is_open(var)) {
      return term({ExprOp::kConst, state_.scope.get(var), {}});
    }
    if (auto it = let_.find(var); it != let_.end()) return it->second;
    if (of_tables_) return std::nullopt;
    VarKind kind = state_.program.vars[at(var)].kind;
    if (kind == VarKind::kExtent || kind == VarKind::kScalar) {
      return term({ExprOp::kVar, n.value, {}});
    }
    if (state_.scope.goes_by_table(expr)) return std::nullopt;
    SizeForm value = state_.scope.form(expr);
    if (!value.is_constant()) return std::nullopt;
    return term({ExprOp::kConst, value.value, {}});
  }
  Term out{n.op, 0, {}};
  for (const Expr& arg : n.args) {
    std::optional<int> one = term_of(arg);
    if (!one) return std::nullopt;
    out.args.push_back(*one);
  }
  return term(out);
}

// The same entry of a table that stays as it is has the same value for all agents of a rank.
std::optional<int> OpenLoops::term_of_table(const ExprNode& entry) {
  bool steady =
      of_tables_ && is_steady_table(state_.program.tensors[at(static_cast<int>(entry.value))]);
  if (!steady) return std::nullopt;
  Term out{ExprOp::kTable, entry.value, {}};
  for (const Expr& index : entry.args) {
    std::optional<int> one = term_of(index);
    if (!one) return std::nullopt;
    out.args.push_back(*one);
  }
  return term(out);
}

void OpenLoops::let(int var, const Expr& definition) {
  if (!may_ || sized_.count(var) == 0) return;
  std::optional<int> value = term_of(definition);
  let_.erase(var);
  if (value) let_[var] = *value;
}

std::int64_t OpenLoops::at_sample(int number) {
  const Term& t = terms_[at(number)];
  if (t.op == ExprOp::kConst) return t.value;
  if (t.op == ExprOp::kVar) {
    return state_.scope.form(Expr::var(static_cast<int>(t.value))).value;  // a size
  }
  if (t.op == ExprOp::kNot) return at_sample(t.args[0]) == 0 ? 1 : 0;
  if (t.op == ExprOp::kSelect) return at_sample(t.args[at_sample(t.args[0]) != 0 ? 1 : 2]);
  return apply(t.op, at_sample(t.args[0]), at_sample(t.args[1]));
}

bool OpenLoops::not_negative(const Expr& expr) {
  std::optional<int> number = term_of(expr);
  std::optional<std::int64_t> low = number ? least(*number) : std::nullopt;
  return low && *low >= 0;
}

// No more than any value of it.
std::optional<std::int64_t> OpenLoops::least(int number) const {
  const Term& t = terms_[at(number)];
  if (t.op == ExprOp::kConst) return t.value;
  if (t.op == ExprOp::kVar) return 0;  // a size
  std::vector<std::optional<std::int64_t>> low;
  for (int arg : t.args) low.push_back(least(arg));
  const Term* by = t.args.size() == 2 ? &terms_[at(t.args[1])] : nullptr;
  bool by_constant = by != nullptr && by->op == ExprOp::kConst;
  bool both = low.size() == 2 && low[0] && low[1];
  switch (t.op) {
    case ExprOp::kAdd:
      return both ? std::optional(*low[0] + *low[1]) : std::nullopt;
    case ExprOp::kSub:
      return both && by_constant ? std::optional(*low[0] - by->value) : std::nullopt;
    case ExprOp::kMul:
      return both && *low[0] >= 0 && *low[1] >= 0 ? std::optional<std::int64_t>(0) : std::nullopt;
    case ExprOp::kMin:
      return both ? std::optional(std::min(*low[0], *low[1])) : std::nullopt;
    case ExprOp::kMax:
      return low[0] && low[1] ? std::max(low[0], low[1]) : low[0] ? low[0] : low[1];
    case ExprOp::kFloorDiv:
      return both && by_constant && by->value > 0 ? std::optional(floor_div(*low[0], by->value))
                                                  : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::vector<const Op*> OpenLoops::counted(const Op& op, const Shape& shape) {
  std::vector<const Op*> out(shape.loops.begin(), shape.loops.end());
  if (op.code == OpCode::kWhen) out.push_back(&op);
  return out;
}

// Of the condition around loops, or of the loop.
std::optional<OpenLoops::Bounds> OpenLoops::bounds_of(const Op& op, const Shape& shape) {
  Expr begin, end;
  if (op.code == OpCode::kLoop) {
    begin = op.exprs[0];
    end = op.exprs[1];
  } else {
    const ExprNode& n = op.exprs[0].node();
    if (n.op != ExprOp::kLt) return std::nullopt;
    begin = n.args[0];
    end = n.args[1];
  }
  if (shape.loops.empty() || !goes_by_sizes(end)) return std::nullopt;
  std::optional<int> last = term_of(end);
  if (!last) return std::nullopt;
  Bounds out{.begin = -1, .end = *last};
  if (begin.node().op == ExprOp::kConst) return out;
  std::optional<int> first = term_of(begin);
  if (!first || !goes_by_sizes(begin)) return std::nullopt;
  out.begin = *first;
  return out;
}

std::optional<int> OpenLoops::count(const Expr& expr, const Bounds& bounds) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kConst) return term({ExprOp::kConst, n.value, {}});
  if (!goes_by_sizes(expr)) return std::nullopt;
  std::optional<int> number = term_of(expr);
  if (number && *number == bounds.end) return term({ExprOp::kVar, kEnd, {}});
  if (number && *number == bounds.begin) return term({ExprOp::kVar, kBegin, {}});
  bool plain = n.op == ExprOp::kAdd || n.op == ExprOp::kSub || n.op == ExprOp::kMul ||
               n.op == ExprOp::kFloorDiv;
  if (!plain) return std::nullopt;
  std::optional<int> a = count(n.args[0], bounds), b = count(n.args[1], bounds);
  if (!a || !b) return std::nullopt;
  return term({n.op, 0, {*a, *b}});
}

std::optional<std::vector<int>> OpenLoops::counts(const Op& op, const Shape& shape,
                                                  const Bounds& bounds) {
  std::vector<int> out;
  for (const Op* o : counted(op, shape)) {
    const std::vector<Expr>& exprs = o->code == OpCode::kLoop ? o->exprs : o->exprs[0].node().args;
    int shifts = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      std::optional<int> c = count(exprs[i], bounds);
      if (!c) return std::nullopt;
      Nature is = nature(*c, bounds.begin >= 0);
      if (!is.linear || (i == 1 && is.shift != shifts)) return std::nullopt;
      shifts = is.shift;
      out.push_back(*c);
    }
  }
  return out;
}

OpenLoops::Nature OpenLoops::nature(int number, bool open_begin) const {
  const Term& t = terms_[at(number)];
  if (t.op == ExprOp::kConst) return {.most = t.value < 0 ? -t.value : t.value};
  if (t.op == ExprOp::kVar) return {.shift = open_begin ? 1 : 0};
  Nature a = nature(t.args[0], open_begin), b = nature(t.args[1], open_begin);
  Nature out{.shift = a.shift,
             .linear = a.linear && b.linear,
             .most = std::max(a.most, b.most),
             .period = a.period * b.period};
  bool by_constant = terms_[at(t.args[1])].op == ExprOp::kConst;
  switch (t.op) {
    case ExprOp::kAdd:
      out.shift = a.shift + b.shift;
      out.linear &= out.shift <= 1;
      return out;
    case ExprOp::kSub:
      out.shift = a.shift - b.shift;
      out.linear &= out.shift >= 0;
      return out;
    case ExprOp::kMul:
      out.linear &= a.shift == 0 && b.shift == 0 && by_constant;
      return out;
    default:
      out.linear &= a.shift == 0 && by_constant && terms_[at(t.args[1])].value > 0;
      if (by_constant) out.period *= terms_[at(t.args[1])].value;
      return out;
  }
}

// Where it begins at 0, if that is not a constant, and ends at n.
std::int64_t OpenLoops::value_at(int number, std::int64_t n) const {
  const Term& t = terms_[at(number)];
  if (t.op == ExprOp::kConst) return t.value;
  if (t.op == ExprOp::kVar) return t.value == kEnd ? n : 0;
  return apply(t.op, value_at(t.args[0], n), value_at(t.args[1], n));
}

// --- the walk of a launch ---

void OpenLoops::start_worker(const Role& role) {
  role_ = &role;
  agent_ = -1;
  parties_.clear();
  visits_.assign(role.agents.size(), {});
  // Agents of a worker are compared with each other alone.
  terms_.clear();
  std::ranges::fill(term_ids_, -1);
  std::vector<int> rings = rings_of(role);
  may_ = (of_tables_ || (state_.region != nullptr && state_.region->loops_open())) &&
         std::none_of(rings.begin(), rings.end(), [](int ring) { return ring >= 0; });
  for (std::size_t a = 0; may_ && a < role.agents.size(); ++a) {
    if (may_take_part(role.agents[a].body)) parties_.insert(static_cast<int>(a));
  }
  if (!parties_.empty()) syncs_.add_meeting();
}

void OpenLoops::start_agent() {
  ++agent_;
  let_.clear();
}

// Where reads begin is needed of those that are written down here.
bool OpenLoops::starts_known(const Shape& shape) {
  return std::ranges::all_of(shape.reads, [&](const auto& read) {
    const Op* loop = read.second;
    return of_tables_ || loop == nullptr || not_negative(loop->exprs[0]);
  });
}

bool OpenLoops::take(const Op& op, const std::function<void()>& read_all) {
  if (!may_ || state_.recorder.agent().phase != Phase::kRoles) return false;
  const Shape& shape = shape_of(op);
  if (!shape.fits) return false;
  std::optional<Bounds> bounds = bounds_of(op, shape);
  if (!bounds) return false;
  auto counts = this->counts(op, shape, *bounds);
  if (!counts || !starts_known(shape)) return false;
  if (of_tables_ && (state_.untold_depth > 0 || shape.pipes.empty())) return false;
  read_registers(op, syncs_);
  Visit visit{.op = &op,
              .bounds = *bounds,
              .counts = *counts,
              .there = state_.there,
              .choice = state_.choice(),
              .tile = state_.tile,
              .pos = 0,
              .reads = {}};
  if (of_tables_) read_all();
  for (auto [read_op, loop] : shape.reads) {
    if (!of_tables_) read(*read_op, loop, visit);
  }
  if (shape.pipes.empty()) return true;
  auto& visits = visits_[at(agent_)];
  syncs_.meet(op, static_cast<std::int64_t>(parties_.size() * (visits.size() + 1)));
  syncs_.forget(shape.got);
  visit.pos = static_cast<int>(state_.recorder.agent().syncs.size());
  visits.push_back(std::move(visit));
  state_.graph.has_open_loops = true;
  return true;
}

const std::set<int>* OpenLoops::slots_of_loop(const Op& op) {
  bool may = state_.region != nullptr && state_.region->loops_open() &&
             (op.code == OpCode::kLoop || op.code == OpCode::kWhen);
  return may && shape_of(op).fits ? &shape_of(op).pipes : nullptr;
}

void OpenLoops::meet_instead(const Op& op, std::int64_t parties, std::int64_t meeting,
                             SyncExpander& syncs) {
  read_registers(op, syncs);
  syncs.meet(op, parties * meeting);
  syncs.forget(shape_of(op).got);
}

void OpenLoops::read_registers(const Op& op, SyncExpander& syncs) {
  const Shape& shape = shape_of(op);
  for (int reg : shape.used) {
    if (shape.got.count(syncs.viewed(reg)) == 0) syncs.read_register(op, reg);
  }
}

void OpenLoops::read(const Op& op, const Op* loop, Visit& visit) {
  std::size_t before = state_.recorder.agent().accesses.size();
  if (loop == nullptr) {
    accesses_.access(op, AccessKind::kRead);
  } else {
    // Where it begins goes by the sizes, but not below zero.
    const Expr& begin = loop->exprs[0];
    std::int64_t first = begin.node().op == ExprOp::kConst ? begin.node().value : 0;
    auto from = at_sample(*term_of(begin)), to = at_sample(*term_of(loop->exprs[1]));
    accesses_.read_from(op, first, from < to ? std::optional(from) : std::nullopt,
                        [&](std::int64_t i) { state_.scope.set(loop->var, i); });
  }
  if (op.code != OpCode::kPipePut) return;
  std::size_t after = state_.recorder.agent().accesses.size();
  for (std::size_t i = before; i < after; ++i) visit.reads.push_back({op.symbol, i});
}

void OpenLoops::finish_worker() {
  if (parties_.empty()) return;
  const std::vector<Visit>& first = visits_[at(*parties_.begin())];
  std::size_t agents_before = state_.graph.agents.size() - role_->agents.size();
  // Where any of them is not positive nothing happens.
  auto there = [&](const Visit& visit) {
    EvalScope::Clauses least;
    if (of_tables_) return std::vector<WherePositive>{};
    for (const SizeForm& f : visit.there) {
      if (state_.region->least(f) < 1) least.push_back({f});
    }
    std::vector<WherePositive> out;
    for (const auto& clause : state_.scope.simplified(std::move(least))) {
      out.push_back(key_of(clause));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  for (std::size_t k = 0; k < first.size(); ++k) {
    if (first[k].turns) {
      finish_turns(k);
      continue;
    }
    std::vector<Part> parts;
    auto first_there = there(first[k]);
    for (int a : parties_) {
      if (visits_[at(a)].size() != first.size() || visits_[at(a)][k].turns) refuse();
      const Visit& visit = visits_[at(a)][k];
      bool alike = visit.tile == first[k].tile && visit.bounds == first[k].bounds &&
                   (!of_tables_ || visit.choice == first[k].choice) && there(visit) == first_there;
      if (!alike) refuse();
      parts.push_back({a, visit.op, visit.counts, visit.bounds.begin >= 0});
      for (int pipe : shapes_[visit.op].pipes) {
        if (syncs_.moved(pipe)) refuse();
      }
    }
    check(parts);
    for (int a : parties_) {
      for (const SlotRead& read : visits_[at(a)][k].reads) {
        int consumer = role_->pipes[at(read.pipe)].consumer;
        state_.graph.agents[agents_before + at(a)].accesses[read.access].landed = {
            static_cast<int>(agents_before) + consumer, visits_[at(consumer)][k].pos};
      }
    }
  }
}

// --- one loop by itself ---

// Of a count: what it is made of.
void OpenLoops::describe(int number, LoopsShown::Key& key) const {
  const Term& t = terms_[at(number)];
  key.insert(key.end(),
             {static_cast<std::int64_t>(t.op), t.value, static_cast<std::int64_t>(t.args.size())});
  for (int arg : t.args) describe(arg, key);
}

LoopsShown::Key OpenLoops::key_of_loop(const std::vector<Part>& parts) const {
  LoopsShown::Key key;
  for (const Part& part : parts) {
    key.insert(key.end(),
               {part.agent, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(part.op)),
                part.open_begin ? 1 : 0});
    for (int count : part.counts) describe(count, key);
  }
  return key;
}

// Nothing that it looks at goes by the sizes, so it is the same in every walk of the program.
void OpenLoops::check(const std::vector<Part>& parts) {
  LoopsShown::Key key = key_of_loop(parts);
  if (shown_->has(key)) return;
  std::int64_t slots = 1, passes = 0, most = 1, period = 1;
  for (const Part& part : parts) {
    const Shape& shape = shapes_[part.op];
    for (int pipe : shape.pipes) {
      const Pipe& p = role_->pipes[at(pipe)];
      slots = std::max<std::int64_t>(slots, p.num_slots);
      bool known = parties_.count(p.producer) != 0 && parties_.count(p.consumer) != 0;
      bool put = shape.puts.count(pipe) == 0 || part.agent == p.producer;
      bool got = shape.gets.count(pipe) == 0 || part.agent == p.consumer;
      if (!known || !put || !got || p.producer == p.consumer) refuse();
    }
    passes += shape.passes;
    for (int c : part.counts) {
      Nature is = nature(c, part.open_begin);
      most = std::max(most, is.most);
      period = std::lcm(period, is.period);
    }
  }
  constexpr std::int64_t kMost = 2048;  // numbers, one after the other
  if (period > 16 || most > 64) refuse();
  std::int64_t span = passes * (slots + 2 * most + 1) * period, last = 2 * (span + most + period);
  if (last > kMost) refuse();
  for (const Part& part : parts) check_goes_on(part, last, period);
  ExpandState state(state_.program, state_.graph.extents, nullptr, nullptr);
  SyncExpander syncs(state, /*by_units=*/false);
  const std::size_t num_counters = state.graph.counters.size();
  for (std::int64_t n = -most - 2; n <= last; ++n) {
    if (!ends(parts, n, state, syncs)) refuse();
    forget_worker(state.graph, num_counters);
  }
  shown_->add(key);
}

// Sums and quotients of n by constants grow by the same in every period.
void OpenLoops::check_goes_on(const Part& part, std::int64_t n, std::int64_t period) const {
  std::size_t num_loops = part.counts.size() / 2 - (part.op->code == OpCode::kWhen ? 1 : 0);
  for (std::size_t i = 0; i < part.counts.size() / 2; ++i) {
    auto distance = [&](std::int64_t at_n) {
      return value_at(part.counts[2 * i + 1], at_n) - value_at(part.counts[2 * i], at_n);
    };
    for (std::int64_t k = 0; k < period; ++k) {
      std::int64_t more = distance(n - k) - distance(n - k - period);
      bool runs = distance(n - k) >= 0;
      bool goes_on = i < num_loops ? more >= 0 && runs : more >= 0 && distance(n - k) > 0;
      if (!goes_on) refuse();
    }
  }
}

bool OpenLoops::ends(const std::vector<Part>& parts, std::int64_t n, ExpandState& state,
                     SyncExpander& syncs) {
  auto role = static_cast<int>(role_ - state_.program.roles.data());
  std::size_t first = state.graph.agents.size();
  syncs.start_worker(role, 0);
  for (const Part& part : parts) {
    state.recorder.start_agent(
        {.rank = 0, .phase = Phase::kRoles, .role = role, .worker = 0, .agent = part.agent});
    syncs.start_agent();
    syncs.forget(shapes_[part.op].got);  // of an earlier loop
    try {
      walk(*part.op, n, part, syncs);
    } catch (const Rejected&) {  // a slot is used in a wrong way
      return false;
    }
    if (syncs.awaits_dots()) return false;
  }
  return syncs.even() && come_through(state.graph, first);
}

void OpenLoops::walk(const Op& op, std::int64_t n, const Part& part, SyncExpander& syncs) {
  std::vector<const Op*> ops = counted(*part.op, shapes_[part.op]);
  auto which = static_cast<std::size_t>(std::find(ops.begin(), ops.end(), &op) - ops.begin());
  std::int64_t a = value_at(part.counts[2 * which], n);
  std::int64_t b = value_at(part.counts[2 * which + 1], n);
  const std::vector<const Op*>& steps = steps_of(op.bodies[0], *part.op);
  const std::int64_t times = op.code == OpCode::kLoop ? b - a : a < b ? 1 : 0;
  for (std::int64_t i = 0; i < times; ++i) walk(steps, n, part, syncs);
}

const std::vector<const Op*>& OpenLoops::steps_of(const Block& body, const Op& op) {
  auto [it, is_new] = steps_.try_emplace({&body, &op});
  if (!is_new) return it->second;
  const std::set<int>& got = shapes_[&op].got;
  for (const Op& step : body) {
    bool is_step = !step.bodies.empty() || got.count(step.result) != 0;
    for (int reg : step.operands) is_step |= got.count(reg) != 0;
    switch (step.code) {
      case OpCode::kPipePut:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
      case OpCode::kDotAsync:
      case OpCode::kAwait:
        is_step = true;
        break;
      default:
        break;
    }
    if (is_step) it->second.push_back(&step);
  }
  return it->second;
}

void OpenLoops::walk(const std::vector<const Op*>& steps, std::int64_t n, const Part& part,
                     SyncExpander& syncs) {
  for (const Op* step : steps) {
    const Op& op = *step;
    if (op.code == OpCode::kLoop) {
      walk(op, n, part, syncs);
      continue;
    }
    if (op.code == OpCode::kWhen) {  // of registers: either way
      for (const Block& body : op.bodies) {
        for_each_op(body, [&](const Op& inner) {
          for (int reg : inner.operands) syncs.read_register(inner, reg);
        });
      }
      continue;
    }
    use_slots(op, syncs);
  }
}

void OpenLoops::use_slots(const Op& op, SyncExpander& syncs) {
  syncs.use_registers(op);
  switch (op.code) {
    case OpCode::kPipePut:
      syncs.begin_put(op);
      return syncs.end_put(op);
    case OpCode::kPipeGet:
      return syncs.pipe_get(op);
    case OpCode::kPipeRelease:
      return syncs.pipe_release(op);
    case OpCode::kDotAsync:
      return syncs.async_dot(op);
    case OpCode::kAwait:
      return syncs.await(op);
    default:
      return;
  }
}

}  // namespace stretto
