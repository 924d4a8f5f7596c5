#include "stretto/proof/expand.h"

#include <fmt/format.h>

#include <array>

#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/expand_accesses.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"
#include "stretto/proof/overlap.h"
#include "stretto/proof/pipe_loops.h"
#include "stretto/proof/pipe_slice.h"

namespace stretto {

ExpandState::ExpandState(const Program& p, const std::vector<std::int64_t>& extents,
                         const TableWitness* witness)
    : program(p), scope(p, initial_vars(p, 0, extents), witness), recorder(graph, budget) {
  graph.program = &p;
  graph.extents = extents;
  for (const Tensor& tensor : p.tensors) {
    if (tensor.shape.size() > kMaxDims) {
      throw Rejected(fmt::format("tensor '{}' has {} dimensions, the proof knows {}", tensor.name,
                                 tensor.shape.size(), kMaxDims));
    }
    auto& shape = graph.shapes.emplace_back();
    for (const Expr& dim : tensor.shape) shape.push_back(scope.value(dim, "shape"));
  }
  cells.resize(p.tensors.size());
  if (witness != nullptr) return;
  deciding = deciding_tables(p);
  cells = table_cells(p, extents);
  for (std::size_t t = 0; t < cells.size(); ++t) {
    if (!cells[t]) continue;
    graph.shapes[t][static_cast<std::size_t>(cells[t]->dim)] = cells[t]->height;
    graph.shapes[t].push_back(cells[t]->count);
    has_cells = true;
  }
}

TableFact inhabited_from(const TablePoint& part) {
  return {.kind = FactKind::kInhabited,
          .table = part.table,
          .entry = {part.entry},
          .value = part.offset,
          .condition = ""};
}

void ExpandState::reject(const Op& op, const std::string& what) const {
  int agent = static_cast<int>(graph.agents.size()) - 1;
  throw Rejected(fmt::format("{}: {} by {}: {}", describe_loc(&op), op_info(op.code).name,
                             describe_agent(graph, agent, tile), what));
}

namespace {

// Of the entries that one operation goes by.
constexpr std::int64_t kMaxCases = 256;
// Of a loop; more may lead an index out of 64 bits.
constexpr std::int64_t kManyTrips = std::int64_t{1} << 20;

class Expander {
 public:
  Expander(const Program& program, const std::vector<std::int64_t>& extents,
           const TableWitness* witness, PipeLoopMode pipe_loop_mode)
      : program_(program),
        witness_(witness),
        pipe_loop_mode_(pipe_loop_mode),
        state_(program, extents, witness),
        accesses_(state_),
        syncs_(state_) {}

  InstanceGraph run() {
    try {
      for (int rank = 0; rank < program_.world_size; ++rank) expand_rank(rank);
    } catch (const NoValue& e) {
      throw UserError(fmt::format("{}: {}", describe_loc(at_), e.what()));
    }
    state_.graph.first_agent.push_back(static_cast<int>(state_.graph.agents.size()));
    return std::move(state_.graph);
  }

 private:
  void expand_rank(int rank) {
    state_.graph.first_agent.push_back(static_cast<int>(state_.graph.agents.size()));
    state_.rank = rank;
    start_agent({.rank = rank, .phase = Phase::kStart});
    block(program_.on_start.body);
    start_agent({.rank = rank, .phase = Phase::kEnd});
    block(program_.on_end.body);
    for (std::size_t r = 0; r < program_.roles.size(); ++r) {
      for (int w = 0; w < program_.roles[r].resource.num_workers; ++w) {
        expand_worker(static_cast<int>(r), w);
      }
    }
  }

  void start_agent(const AgentTrace& agent) {
    state_.recorder.start_agent(agent);
    state_.tile = -1;
    state_.scope =
        EvalScope(program_, initial_vars(program_, state_.rank, state_.graph.extents), witness_);
    syncs_.start_agent();
    pipe_loops_.start_agent();
  }

  void expand_worker(int role_idx, int worker) {
    const Role& role = program_.roles[static_cast<std::size_t>(role_idx)];
    syncs_.start_worker(role_idx, worker);
    pipe_loops_.start_worker(role);
    try {
      for (std::size_t a = 0; a < role.agents.size(); ++a) expand_agent(role_idx, worker, a);
    } catch (const Rejected&) {
      // The slots of one agent may not be there for another that leaves out fewer iterations.
      if (pipe_loops_.any_left_out()) throw UnevenPipeLoops{};
      throw;
    }
    if (pipe_loops_.any_left_out() && !syncs_.even()) throw UnevenPipeLoops{};
    syncs_.finish_worker();
  }

  void expand_agent(int role_idx, int worker, std::size_t agent) {
    const Role& role = program_.roles[static_cast<std::size_t>(role_idx)];
    start_agent({.rank = state_.rank,
                 .phase = Phase::kRoles,
                 .role = role_idx,
                 .worker = worker,
                 .agent = static_cast<int>(agent)});
    std::int64_t num_tiles = state_.scope.value(role.num_tiles, "number of tiles");
    for (std::int64_t t = worker; t < num_tiles; t += role.resource.num_workers) {
      state_.budget.step(role.loc);
      state_.tile = t;
      state_.scope.set(role.tile_var, t);
      block(role.agents[agent].body);
    }
  }

  void block(const Block& ops) {
    for (const Op& o : ops) op(o);
  }

  void op(const Op& o) {
    at_ = &o;
    if (!looking_) syncs_.use_registers(o);
    switch (o.code) {
      case OpCode::kLet:
        return let(o);
      case OpCode::kLoad:
        return read(o);
      case OpCode::kStore:
        return each_choice(o.region, [&] { accesses_.access(o, AccessKind::kWrite); });
      case OpCode::kReduceStore:
        return each_choice(o.region, [&] { accesses_.access(o, AccessKind::kReduce); });
      case OpCode::kLoadRows:
      case OpCode::kStoreRows:
        return each_choice(o.region, [&] { accesses_.scattered(o); });
      case OpCode::kCopy:
        each_choice(o.region, [&] { accesses_.copy_from(o); });
        return each_choice(o.region2, [&] { accesses_.copy_to(o); });
      case OpCode::kStorePacket:
      case OpCode::kLoadPacket:
        return accesses_.packet(o);
      case OpCode::kFence:
        return state_.recorder.add_sync(
            {.kind = SyncKind::kFence, .choice = state_.choice(), .tile = state_.tile, .op = &o});
      case OpCode::kNotify:
        return syncs_.signal(o);
      case OpCode::kWait:
        // What it says of the rank that it waits for is for reports.
        return each_choice(o, 2, [&] { syncs_.signal(o); });
      case OpCode::kPipePut:
        if (looking_) return read(o);
        syncs_.begin_put(o);
        read(o);
        return syncs_.end_put(o);
      case OpCode::kPipeFill:
        return looking_ ? void() : syncs_.pipe_fill(o);
      case OpCode::kPipeGet:
        return looking_ ? void() : syncs_.pipe_get(o);
      case OpCode::kPipeRelease:
        return looking_ ? void() : syncs_.pipe_release(o);
      case OpCode::kArrive:
      case OpCode::kBarrierSync:
        return syncs_.barrier(o);
      case OpCode::kDotAsync:
        return looking_ ? void() : syncs_.async_dot(o);
      case OpCode::kAwait:
        return looking_ ? void() : syncs_.await(o);
      case OpCode::kLoop:
        return each_choice(o, 2, [&] { loop(o); });
      case OpCode::kWhen:
        return each_choice(o, 1, [&] { when(o); });
      default:
        if (op_info(o.code).synchronises || !op_info(o.code).schedule_level) {
          state_.reject(o, "tile primitives must be resolved before the proof");
        }
    }
  }

  void let(const Op& o) {
    accesses_.table_reads(o, o.exprs[0]);
    std::optional<TablePoint> point;
    if (state_.has_cells) point = state_.scope.table_point(o.exprs[0]);
    try {
      state_.scope.set(o.var, state_.scope.range(o.exprs[0]));
    } catch (const Rejected& e) {  // of an entry that is not there
      throw Rejected(fmt::format("{}: {}", describe_loc(&o), e.what()));
    }
    if (point) state_.scope.set_point(o.var, *point);
    if (state_.scope.is_open(o.var)) state_.scope.set_definition(o.var, o.exprs[0]);
  }

  // Once for each value of the deciding entries that a region goes by, or the first expressions of
  // an operation.
  template <typename Expand>
  void each_choice(const std::optional<Region>& region, const Expand& expand_it) {
    if (!state_.deciding.any) return expand_it();
    std::vector<const Expr*> exprs = {&region->rank, &region->row_end, &region->col_end};
    for (const Expr& e : region->origin) exprs.push_back(&e);
    each_choice(exprs, expand_it);
  }
  template <typename Expand>
  void each_choice(const Op& o, std::size_t num_exprs, const Expand& expand_it) {
    if (!state_.deciding.any) return expand_it();
    std::vector<const Expr*> exprs;
    for (std::size_t i = 0; i < num_exprs; ++i) exprs.push_back(&o.exprs[i]);
    each_choice(exprs, expand_it);
  }

  template <typename Expand>
  void each_choice(const std::vector<const Expr*>& exprs, const Expand& expand_it) {
    std::optional<TableEntry> entry;
    for (std::size_t i = 0; i < exprs.size() && !entry; ++i) {
      entry = state_.scope.open_entry(*exprs[i], state_.deciding.by_entry);
    }
    if (!entry) return expand_it();
    ValueRange values = state_.scope.range(
        Expr::table(entry->table, std::vector<Expr>(entry->index.begin(), entry->index.end())));
    TableFact fact{.table = entry->table, .entry = entry->index, .condition = ""};
    state_.graph.choices->bound(fact, values.lo, values.hi);
    std::int64_t around = num_cases_;
    num_cases_ *= values.hi - values.lo + 1;
    if (num_cases_ > kMaxCases) throw DependsOnTable{"too much of what is waited for"};
    ++state_.may_depth;
    for (std::int64_t v = values.lo; v <= values.hi; ++v) {
      state_.scope.suppose(*entry, v);
      fact.value = v;
      std::array<int, 1> is_so = {state_.graph.choices->fact(fact)};
      state_.enter(is_so);
      each_choice(exprs, expand_it);
      state_.leave(is_so);
    }
    state_.scope.forget(*entry);
    --state_.may_depth;
    num_cases_ = around;
  }

  void when(const Op& o) {
    ValueRange condition = state_.scope.range(o.exprs[0]);
    if (condition.exact()) return block(o.bodies[condition.lo != 0 ? 0 : 1]);
    std::vector<int> so, not_so;
    bool told = state_.deciding.any && facts_of(o.exprs[0], so) &&
                (o.bodies[1].empty() || fact_of(!o.exprs[0], not_so));
    if (loops_.of(o).synchronises && !told) {
      throw DependsOnTable{"whether a signal is sent or waited for"};
    }
    ++state_.may_depth;
    state_.untold_depth += told ? 0 : 1;
    std::optional<TablePoint> part = inhabited_part(o.exprs[0]);
    if (part) state_.inhabited.push_back(*part);
    under(so, o.bodies[0]);
    if (part) state_.inhabited.pop_back();
    under(not_so, o.bodies[1]);
    state_.untold_depth -= told ? 0 : 1;
    --state_.may_depth;
  }

  void under(const std::vector<int>& facts, const Block& body) {
    state_.enter(facts);
    block(body);
    state_.leave(facts);
  }

  // The facts that make up a condition; false where they would not tell all of it.
  bool facts_of(const Expr& condition, std::vector<int>& facts) {
    const ExprNode& n = condition.node();
    if (n.op != ExprOp::kAnd) return fact_of(condition, facts);
    return facts_of(n.args[0], facts) && facts_of(n.args[1], facts);
  }

  bool fact_of(const Expr& condition, std::vector<int>& facts) {
    if (state_.scope.range(condition).exact()) return true;
    TableChoices& choices = *state_.graph.choices;
    if (std::optional<TablePoint> part = inhabited_part(condition)) {
      facts.push_back(choices.fact(inhabited_from(*part)));
      return true;
    }
    std::optional<std::string> text = state_.scope.text(condition);
    if (!text) return false;
    facts.push_back(choices.fact({.kind = FactKind::kCondition, .entry = {}, .condition = *text}));
    return true;
  }

  // `condition`: a partition's entry, plus something, < the next entry.
  std::optional<TablePoint> inhabited_part(const Expr& condition) {
    const ExprNode& n = condition.node();
    if (!state_.has_cells || n.op != ExprOp::kLt) return std::nullopt;
    std::optional<TablePoint> from = state_.scope.table_point(n.args[0]);
    std::optional<TablePoint> end = state_.scope.table_point(n.args[1]);
    if (!from || !end || from->scale != 1 || from->offset < 0) return std::nullopt;
    const Tensor& table = program_.tensors[static_cast<std::size_t>(from->table)];
    if (table.contract.kind != ContractKind::kPartition) return std::nullopt;
    return *end == TablePoint{.table = from->table, .entry = from->entry + 1} ? from : std::nullopt;
  }

  void loop(const Op& o) {
    ValueRange begin = state_.scope.range(o.exprs[0]), end = state_.scope.range(o.exprs[1]);
    const LoopShape& shape = loops_.of(o);
    bool open = !begin.exact() || !end.exact();
    if (open && shape.synchronises) throw DependsOnTable{"how often a loop synchronises"};
    if (end.hi <= begin.lo) return;
    std::int64_t trips = apply(ExprOp::kSub, end.hi, begin.lo);
    state_.may_depth += open ? 1 : 0;
    state_.untold_depth += open ? 1 : 0;
    if (shape.synchronises) {
      bool folds =
          pipe_loop_mode_ == PipeLoopMode::kFold && shape.piped && stays_in_parts(o, shape.moving);
      std::int64_t left_out =
          folds ? pipe_loops_.left_out(shape.pipe, state_.tile, trips, shape.slots) : 0;
      walk_around(o, begin.lo, end.hi, left_out);
    } else {
      state_.recorder.begin_fold(shape.ordered);
      bool alike = !shape.chooses || !syncs_.holds_slots();
      if (shape.affine && alike && !state_.has_cells) {
        walk_affine(o, begin.lo, end.hi);
      } else {
        walk(o, begin.lo, end.hi);
      }
      state_.recorder.end_fold();
    }
    state_.may_depth -= open ? 1 : 0;
    state_.untold_depth -= open ? 1 : 0;
  }

  // Whether no read moves along rows that a table deals out: then all of them lie in the parts that
  // the first lies in, at the same rows.
  bool stays_in_parts(const Op& loop, const std::set<int>& moving) const {
    if (!state_.has_cells) return true;
    return std::none_of(loop.bodies[0].begin(), loop.bodies[0].end(), [&](const Op& op) {
      if (!op.region) return false;
      const auto& cells = state_.cells[static_cast<std::size_t>(op.region->tensor)];
      return cells && uses_any(op.region->origin[static_cast<std::size_t>(cells->dim)], moving);
    });
  }

  void walk(const Op& o, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      state_.budget.step(o.loc);
      state_.scope.set(o.var, i);
      block(o.bodies[0]);
    }
  }

  // All but `left_out` iterations before the last, which counts their reads as its own.
  void walk_around(const Op& o, std::int64_t begin, std::int64_t end, std::int64_t left_out) {
    if (left_out == 0) return walk(o, begin, end);
    std::int64_t counted = end - 1 - left_out;
    for (const Expr& condition : loops_.of(o).conditions) {
      if (holds(o, condition, counted) != holds(o, condition, end - 1)) throw UnevenPipeLoops{};
    }
    walk(o, begin, counted);
    looking_ = true;
    counted_ = look(o, counted, end);
    looking_ = false;
    walk(o, end - 1, end);
    counted_.reset();
  }

  bool holds(const Op& o, const Expr& condition, std::int64_t iteration) {
    state_.scope.set(o.var, iteration);
    return state_.scope.value(condition, "condition") != 0;
  }

  void walk_affine(const Op& o, std::int64_t begin, std::int64_t end) {
    Look all = look(o, begin, end);
    state_.recorder.add_affine(all.first, all.second, all.trips);
  }

  // The accesses of iterations [begin, end): two of them tell how every box moves.
  struct Look {
    std::vector<LooseAccess> first, second;
    std::int64_t trips = 0;
  };
  Look look(const Op& o, std::int64_t begin, std::int64_t end) {
    Look out{.first = {}, .second = {}, .trips = end - begin};
    std::int64_t next = begin + (end - begin > 1 ? 1 : 0);
    state_.recorder.divert(&out.first);
    walk(o, begin, begin + 1);
    state_.recorder.divert(&out.second);
    walk(o, next, next + 1);
    if (out.trips > kManyTrips) {  // no box leaves what can be counted if those at both ends do not
      std::vector<LooseAccess> last;
      state_.recorder.divert(&last);
      walk(o, end - 1, end);
    }
    state_.recorder.divert(nullptr);
    return out;
  }

  void read(const Op& o) {
    if (!counted_) {
      bool picked = o.code == OpCode::kPipePut && !o.operands.empty();
      return each_choice(o.region, [&] {
        picked ? accesses_.scattered(o) : accesses_.access(o, AccessKind::kRead);
      });
    }
    Look own{.first = {}, .second = {}, .trips = counted_->trips};
    for (std::size_t i = 0; i < counted_->first.size(); ++i) {
      if (counted_->first[i].access.op != &o) continue;
      own.first.push_back(counted_->first[i]);
      own.second.push_back(counted_->second[i]);
    }
    state_.recorder.add_affine(own.first, own.second, own.trips);
  }

  const Program& program_;
  const TableWitness* witness_;
  PipeLoopMode pipe_loop_mode_;
  ExpandState state_;
  AccessExpander accesses_;
  SyncExpander syncs_;
  LoopShapes loops_;
  PipeLoops pipe_loops_;
  const Op* at_ = nullptr;       // what is being looked at
  bool looking_ = false;         // at accesses alone
  std::int64_t num_cases_ = 1;   // of the deciding entries in hand
  std::optional<Look> counted_;  // to the iteration being walked
};

}  // namespace

InstanceGraph expand(const Program& program, const std::vector<std::int64_t>& extents,
                     const TableWitness* witness, PipeLoopMode pipe_loops) {
  InstanceGraph graph;
  try {
    graph = Expander(program, extents, witness, pipe_loops).run();
  } catch (const UnevenPipeLoops&) {
    graph = Expander(program, extents, witness, PipeLoopMode::kWalk).run();
  }
  link_packets(graph);
  link_landings(graph);
  return graph;
}

}  // namespace stretto
