#include "stretto/proof/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/conditions.h"
#include "stretto/proof/expand_accesses.h"
#include "stretto/proof/expand_state.h"
#include "stretto/proof/expand_syncs.h"
#include "stretto/proof/local_roles.h"
#include "stretto/proof/open_loops.h"
#include "stretto/proof/packet_links.h"
#include "stretto/proof/pipe_loops.h"
#include "stretto/proof/pipe_slice.h"
#include "stretto/proof/size_conditions.h"
#include "stretto/proof/size_spans.h"
#include "stretto/proof/steady_runs.h"
#include "stretto/proof/time_limit.h"
#include "stretto/proof/trip_counts.h"

namespace stretto {
namespace {

// Of the entries that one operation goes by.
constexpr std::int64_t kMaxCases = 256;
// Of a loop; more may lead an index out of 64 bits.
constexpr std::int64_t kManyTrips = std::int64_t{1} << 20;
// Of which nothing but what they store is written down: a second's walk.
constexpr std::int64_t kMostStored = std::int64_t{1} << 21;
// Where no loop over slots has another way (kMostTurns): what a step of 8,192 rows of 256 sequences
// has on CPU ranks, some twenty seconds and 1.5 GB.
constexpr std::int64_t kMostWalked = std::int64_t{1} << 21;

// Of what, and in which way.
struct Wanted {
  const TableWitness* witness = nullptr;
  PipeLoopMode pipe_loops = PipeLoopMode::kWalk;
  std::optional<std::int64_t> trips;
  SizeRegion* region = nullptr;
  TableLoops table_loops = TableLoops::kNone;
  std::int64_t most_turns = kMostWalked;
  bool local_loops = true;         // in roles that are alone with their tiles
  bool runs = false;               // of slots, though there is no region (steady_runs.h)
  std::map<int, int> uneven_runs;  // by role: how often
  LoopsShown* shown = nullptr;     // or none
};

// More iterations than are walked one by one, in loops that tables end.
struct TooManyTurns {};
// A role was taken to be alone with its tiles (local_roles.h) that has a loop which has to be
// walked.
struct NotAlone {};

class Expander {
 public:
  Expander(const Program& program, const std::vector<std::int64_t>& extents, const Wanted& wanted)
      : program_(program),
        witness_(wanted.witness),
        pipe_loop_mode_(wanted.pipe_loops),
        table_loops_(wanted.table_loops),
        most_turns_(wanted.most_turns),
        state_(program, extents, wanted.witness, wanted.region),
        accesses_(state_),
        syncs_(state_, wanted.trips.has_value()),
        conditions_(state_),
        runs_(state_, syncs_, wanted.uneven_runs, wanted.runs),
        sizes_(state_, runs_),
        open_loops_(state_, syncs_, accesses_, wanted.table_loops, wanted.shown),
        local_roles_(program, wanted.local_loops ? &open_loops_ : nullptr),
        trips_(state_.scope, wanted.trips) {
    if (wanted.runs) state_.recorder.leave_out_inputs();
  }

  InstanceGraph run() {
    try {
      for (int rank = 0; rank < program_.world_size; ++rank) expand_rank(rank);
    } catch (const NoValue& e) {
      throw UserError(fmt::format("{}: {}", describe_loc(state_.at), e.what()));
    } catch (DependsOnTable& reason) {
      if (reason.where.empty() && state_.at != nullptr) reason.where = describe_loc(state_.at);
      throw;
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
    state_.scope = EvalScope(program_, initial_vars(program_, state_.rank, state_.graph.extents),
                             witness_, state_.region);
    syncs_.start_agent();
    sizes_.start_agent();
    pipe_loops_.start_agent();
    trips_.start_agent();
  }

  void expand_worker(int role_idx, int worker) {
    const Role& role = program_.roles[static_cast<std::size_t>(role_idx)];
    syncs_.start_worker(role_idx, worker);
    bool masks_open = state_.region != nullptr && state_.region->masks_open();
    if (masks_open && local_roles_.of(role).is_local) return expand_local_worker(role_idx, worker);
    pipe_loops_.start_worker(role);
    open_loops_.start_worker(role);
    runs_.start_worker(role, open_loops_.any_take_part());
    trips_.start_worker(pipe_loops_.walked(), pipe_loops_.step());
    try {
      for (std::size_t a = 0; a < role.agents.size(); ++a) expand_agent(role_idx, worker, a);
    } catch (const Rejected&) {
      // The slots of one agent may not be there for another that leaves out fewer iterations.
      if (pipe_loops_.any_left_out()) throw UnevenPipeLoops{};
      throw;
    }
    if (pipe_loops_.any_left_out() && !syncs_.even()) throw UnevenPipeLoops{};
    syncs_.finish_worker();
    open_loops_.finish_worker();
    runs_.finish_worker();
    bool counts = table_loops_ == TableLoops::kNone && !state_.deciding.counted_loops.empty() &&
                  !state_.deciding.counted_pipes[static_cast<std::size_t>(role_idx)].empty();
    if (counts) state_.graph.trips = std::max(state_.graph.trips, pipe_loops_.walked());
  }

  // What it reads and stores alone (local_roles.h).
  void expand_local_worker(int role_idx, int worker) {
    const Role& role = program_.roles[static_cast<std::size_t>(role_idx)];
    local_ = &local_roles_.of(role);
    looking_ = true;
    open_loops_.start_worker(role);
    runs_.start_worker(role, /*others=*/true);
    for (std::size_t agent = 0; agent < role.agents.size(); ++agent) {
      start_agent({.rank = state_.rank,
                   .phase = Phase::kRoles,
                   .role = role_idx,
                   .worker = worker,
                   .agent = static_cast<int>(agent)});
      open_loops_.start_agent();
      local_tiles(role, worker, agent);
    }
    open_loops_.finish_worker();
    looking_ = false;
    local_ = nullptr;
  }

  // Those of each turn that the agent takes part in.
  void local_tiles(const Role& role, int worker, std::size_t agent) {
    const Expr& num_tiles = local_->num_tiles;
    bool open = local_->counts_open;
    std::int64_t decided = open ? 0 : state_.scope.value(num_tiles, "number of tiles");
    auto is_last = [&](const LocalRoles::Turn& turn) {
      std::int64_t tile = state_.scope.value(turn.tile, "tile");
      auto there = open ? sizes_.more_than(tile, num_tiles) : std::nullopt;
      if (open ? there->known && !*there->known : tile >= decided) return true;
      if (there) state_.there = there->forms;
      if (turn.bodies[agent] != nullptr) block(*turn.bodies[agent]);
      state_.there.clear();
      return false;
    };
    for (std::int64_t t = worker;; t += role.resource.num_workers) {
      state_.budget.step(role.loc);
      state_.tile = t;
      state_.scope.set(role.tile_var, t);
      if (std::ranges::any_of(local_->turns, is_last)) return;
    }
  }

  void expand_agent(int role_idx, int worker, std::size_t agent) {
    const Role& role = program_.roles[static_cast<std::size_t>(role_idx)];
    start_agent({.rank = state_.rank,
                 .phase = Phase::kRoles,
                 .role = role_idx,
                 .worker = worker,
                 .agent = static_cast<int>(agent)});
    open_loops_.start_agent();
    runs_.start_agent();
    bool silent =
        std::ranges::none_of(role.agents, [](const Agent& a) { return synchronises(a.body); });
    bool open = state_.region != nullptr && state_.region->masks_open();
    if (open && silent) {
      open = local_roles_.of(role).counts_open || role.num_tiles.node().op != ExprOp::kMul;
    } else if (open) {
      open = local_roles_.of(role).counts_open && sizes_.tiles_may_be_open(role);
    }
    tiles(role, worker, agent, open, silent);
  }

  // The worker's. `open`: how many there are need not be decided. Nobody waits for what is in a
  // role without synchronisation, which is `silent`: what its tiles touch that are there at some
  // sizes only is masked like the rest. Other roles' are there under a condition.
  void tiles(const Role& role, int worker, std::size_t agent, bool open, bool silent) {
    std::int64_t decided = open ? 0 : state_.scope.value(role.num_tiles, "number of tiles");
    auto agents = static_cast<std::int64_t>(role.agents.size());
    num_tiles_ = std::max<std::int64_t>(decided * program_.world_size * agents, 1);
    const Block& body = role.agents[agent].body;
    for (std::int64_t t = worker; open || t < decided; t += role.resource.num_workers) {
      auto there = open ? sizes_.more_than(t, role.num_tiles) : std::nullopt;
      if (there && there->known && !*there->known) break;
      state_.budget.step(role.loc);
      state_.tile = t;
      state_.scope.set(role.tile_var, t);
      if (there && !silent) {
        sizes_.where(there->forms, [&] { block(body); });
        continue;
      }
      if (there) state_.there = there->forms;
      block(body);
    }
    state_.there.clear();
  }

  void block(const Block& ops) {
    const std::vector<SteadyRun>* runs = looking_ || only_stores_ ? nullptr : runs_.of(ops);
    std::size_t next = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      TimeLimit::look();
      bool begins = runs != nullptr && next < runs->size() && (*runs)[next].begin == i;
      if (!begins) {
        op(ops[i]);
        continue;
      }
      const SteadyRun& run = (*runs)[next++];
      take_run(run);
      i = run.end - 1;
    }
  }

  // What it reads, and a meeting.
  void take_run(const SteadyRun& run) {
    runs_.enter(run);
    std::size_t first_read = state_.recorder.agent().accesses.size();
    looking_ = in_run_ = true;
    for (std::size_t i = run.begin; i < run.end; ++i) op((*run.block)[i]);
    looking_ = in_run_ = false;
    runs_.leave(run, first_read);
  }

  void op(const Op& o) {
    state_.move_to(o);
    if (only_stores_) return store_alone(o);
    if (!looking_) syncs_.use_registers(o);
    switch (o.code) {
      case OpCode::kLet:
        return let(o);
      case OpCode::kLoad:
        return read(o);
      case OpCode::kStore:
        if (part_turn_) return store_rows_of_part(o);
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
      case OpCode::kPipeFill:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        return pass_slot(o);
      case OpCode::kArrive:
      case OpCode::kBarrierSync:
        return syncs_.barrier(o);
      case OpCode::kDotAsync:
        return looking_ ? void() : syncs_.async_dot(o);
      case OpCode::kAwait:
        return looking_ ? void() : syncs_.await(o);
      case OpCode::kLoop:
        if (takes_turns_of_part(o) || takes_whole(o)) return;
        return each_choice(o, 2, [&] { loop(o); });
      case OpCode::kWhen:
        if (in_run_ && is_register_choice(o)) return;
        if (takes_whole(o)) return;
        return each_choice(o, 1, [&] { when(o); });
      default:
        if (op_info(o.code).synchronises || !op_info(o.code).schedule_level) {
          state_.reject(o, "tile primitives must be resolved before the proof");
        }
    }
  }

  bool takes_whole(const Op& o) {
    bool taken = open_loops_.take(o, [&] { read_all(o); });
    if (!taken && local_ != nullptr && open_loops_.slots_of_loop(o) != nullptr) throw NotAlone{};
    return taken;
  }

  // Iterations that have rows of a part, however many there are (part_turns.h). They pass slots
  // alike, in runs, so one meeting stands for those of all; the second tells what registers hold
  // when another one begins.
  bool takes_turns_of_part(const Op& o) {
    const PartRows* turns = state_.turns == nullptr ? nullptr : state_.turns->of(o);
    if (turns == nullptr) return false;
    const Expr& most_rows = program_.tensors[static_cast<std::size_t>(turns->table)].contract.hi;
    if (state_.region->most(state_.scope.form(most_rows)) <= 1) return false;  // there are none
    bool alone = !part_turn_ && !looking_ && !in_run_ && !only_stores_ && local_ == nullptr &&
                 state_.untold_depth == 0 && !state_.recorder.diverts();
    if (!alone) refuse_turns_of_part();
    PartTurn first = turn_of_part(o, *turns, 0), second = turn_of_part(o, *turns, 1);
    bool in_turn = first.part == second.part && second.first == first.first + turns->step;
    if (!in_turn || first.first < 0 || first.first >= turns->step) refuse_turns_of_part();
    // All agents of the worker take the same turns, or they do not come to the same runs.
    std::array<int, 1> which = {state_.graph.choices->fact(
        {.kind = FactKind::kCondition,
         .table = turns->table,
         .entry = {first.part},
         .value = 0,
         .condition = fmt::format("rows of part {} of '{}', modulo {} from {}", first.part,
                                  program_.tensors[static_cast<std::size_t>(turns->table)].name,
                                  turns->step, first.first)})};
    for (std::int64_t i : {0, 1}) {
      turn_of_part(o, *turns, i);
      part_turn_ = i == 0 ? first : second;
      state_.enter(which);
      part_turn_->fact = which[0];
      block(turns->condition->bodies[0]);
      state_.leave(which);
    }
    part_turn_.reset();
    return true;
  }

  struct PartTurn {
    std::int64_t iteration = 0, step = 0;
    int table = -1;
    std::int64_t part = 0, first = 0;  // of its rows
    int fact = -1;
  };

  [[noreturn]] static void refuse_turns_of_part() {
    throw DependsOnTable{"which rows lie in which part"};
  }

  // Where iteration `i` is from here on.
  PartTurn turn_of_part(const Op& o, const PartRows& turns, std::int64_t i) {
    state_.budget.step(o.loc);
    state_.scope.set(o.var, i);
    for (const Op& op : o.bodies[0]) {
      if (op.code == OpCode::kLet) let(op);
    }
    const ExprNode& less = turns.condition->exprs[0].node();
    std::optional<TablePoint> from = state_.scope.table_point(less.args[0], /*of_region=*/true);
    if (!from || from->table != turns.table || from->scale != 1) refuse_turns_of_part();
    require_end_of_part(less.args[1], turns.table, from->entry);
    return {.iteration = i,
            .step = turns.step,
            .table = turns.table,
            .part = from->entry,
            .first = from->offset};
  }

  void require_end_of_part(const Expr& end, int table, std::int64_t part) {
    std::optional<TablePoint> to = state_.scope.table_point(end, /*of_region=*/true);
    if (!to || *to != TablePoint{.table = table, .entry = part + 1}) refuse_turns_of_part();
  }

  // It does so whenever there are such rows, so whatever else decides here.
  void store_rows_of_part(const Op& o) {
    const PartTurn& turn = *part_turn_;
    const auto& cells = state_.cells[static_cast<std::size_t>(o.region->tensor)];
    const Expr& row = o.region->origin[static_cast<std::size_t>(o.region->row_dim)];
    std::optional<TablePoint> from = state_.scope.table_point(row, /*of_region=*/true);
    bool own = from && cells && cells->table == turn.table && turn.part < cells->count &&
               *from == TablePoint{.table = turn.table, .entry = turn.part, .offset = turn.first};
    if (!own) refuse_turns_of_part();
    require_end_of_part(o.region->row_end, turn.table, turn.part);
    if (turn.iteration > 0) return;
    if (turn.first + o.region->rows > turn.step) refuse_turns_of_part();
    const Contract& contract = program_.tensors[static_cast<std::size_t>(turn.table)].contract;
    std::int64_t rows = state_.scope.form(contract.hi).value - 1;
    accesses_.rows_of_part(
        o, {.part = turn.part, .first = turn.first, .fact = turn.fact, .meets = rows > turn.first});
  }

  void let(const Op& o) {
    if (local_ != nullptr) {
      auto in_order = local_->order.values.find(o.var);
      if (in_order != local_->order.values.end()) {
        state_.scope.set_to(o.var, in_order->second);
        return open_loops_.let(o.var, in_order->second);
      }
    }
    accesses_.table_reads(o, o.exprs[0]);
    let_alone(o);
    if (trips_.wanted()) trips_.let(o.var, o.exprs[0]);
    open_loops_.let(o.var, o.exprs[0]);
  }

  void let_alone(const Op& o) {
    std::optional<TablePoint> point;
    if (state_.has_cells) point = state_.scope.table_point(o.exprs[0]);
    try {
      state_.scope.set_to(o.var, o.exprs[0]);
    } catch (const Rejected& e) {  // of an entry that is not there
      throw Rejected(fmt::format("{}: {}", describe_loc(&o), e.what()));
    }
    if (point) state_.scope.set_point(o.var, *point);
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
    const Expr& condition = o.exprs[0];
    if (sizes_.walk(o, [&](const Block& body) { block(body); })) return;
    ValueRange known = state_.scope.range(condition);
    if (known.exact()) {
      if (trips_.wanted() && loops_.of(o).synchronises) trips_.meet(o);
      return block(o.bodies[known.lo != 0 ? 0 : 1]);
    }
    std::vector<int> so, not_so;
    bool told = state_.deciding.any && conditions_.facts_of(condition, so) &&
                (o.bodies[1].empty() || conditions_.fact_of(!condition, not_so));
    if (loops_.of(o).synchronises && !told && !only_stores_) {
      throw DependsOnTable{"whether a signal is sent or waited for"};
    }
    state_.untold_depth += told ? 0 : 1;
    under(so, conditions_.inhabited_part(condition), o.bodies[0]);
    under(not_so, {}, o.bodies[1]);
    state_.untold_depth -= told ? 0 : 1;
  }

  // What happens for some tables only: of those with these facts, where a part has these rows.
  void under(const std::vector<int>& facts, const std::optional<TablePoint>& part,
             const Block& body) {
    ++state_.may_depth;
    if (part) state_.inhabited.push_back(*part);
    state_.enter(facts);
    block(body);
    state_.leave(facts);
    if (part) state_.inhabited.pop_back();
    --state_.may_depth;
  }

  void loop(const Op& o) {
    ValueRange begin = state_.scope.range(o.exprs[0]), end = state_.scope.range(o.exprs[1]);
    const LoopShape& shape = loops_.of(o);
    bool open = !begin.exact() || !end.exact(), empty = end.hi <= begin.lo;
    bool counted = state_.deciding.counted_loops.count(&o) > 0;
    if (open && !empty && counted) return counted_loop(o);
    bool turns = open && !empty && open_loops_.may_take_turns(o);
    if (turns && !only_stores_) return take_turns(o, begin, end);
    if (open && !empty && (shape.synchronises || shape.writes)) return open_loop(o, begin, end);
    bool by_trips = trips_.wanted() && !open && shape.synchronises;
    if (by_trips) trips_.enter(o, {state_.tile, state_.choice()});
    state_.may_depth += open ? 1 : 0;
    state_.untold_depth += open ? 1 : 0;
    if (!empty) all_iterations(o, begin.lo, end.hi);
    state_.may_depth -= open ? 1 : 0;
    state_.untold_depth -= open ? 1 : 0;
    if (by_trips) trips_.leave(o);
  }

  void all_iterations(const Op& o, std::int64_t begin, std::int64_t end) {
    std::int64_t trips = apply(ExprOp::kSub, end, begin);
    const LoopShape& shape = loops_.of(o);
    bool slots_alone = local_ != nullptr || in_run_;
    if (shape.synchronises && !slots_alone) {
      bool folds = pipe_loop_mode_ == PipeLoopMode::kFold && shape.piped &&
                   state_.stays_in_parts(o, shape.moving);
      std::int64_t left_out = folds ? pipe_loops_.left_out({.pipe = shape.pipe,
                                                            .tile = state_.tile,
                                                            .passed = syncs_.passed(shape.pipe),
                                                            .trips = trips,
                                                            .slots = shape.slots})
                                    : 0;
      return walk_around(o, begin, end, left_out);
    }
    state_.recorder.begin_fold(shape.ordered);
    bool alike = (shape.affine || shape.piped) && slots_alone;
    if (alike && state_.stays_in_parts(o, shape.moving)) {
      Look all = look(o, begin, end);
      state_.recorder.add_affine(all.first, all.second, all.trips);
    } else if (shape.affine && !state_.has_cells && (!shape.chooses || !syncs_.holds_slots())) {
      Look all = look(o, begin, end);
      state_.recorder.add_affine(all.first, all.second, all.trips);
    } else if (!taken_at_once(o, begin, end)) {
      walk(o, begin, end);
    }
    state_.recorder.end_fold();
  }

  // A loop that reads nothing but inputs, of which nothing is written down: where its first
  // iteration meets them all, and no index can be without a value in the others, the last stands
  // for those. As attention goes over all keys for each row. Where a condition decides which
  // registers are read, one of those in between may read a slot that was released.
  bool taken_at_once(const Op& o, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kFew = 8;
    bool alone = state_.region == nullptr && witness_ == nullptr && !state_.deciding.any &&
                 !trips_.wanted() && !looking_ && !in_run_ && !only_stores_ && local_ == nullptr;
    alone &= !loops_.of(o).chooses || !syncs_.holds_slots();
    if (!alone || end - begin < kFew || !state_.recorder.leaves_out_inputs() ||
        state_.recorder.diverts() || !only_reads_own_inputs(o.bodies[0], program_)) {
      return false;
    }
    walk(o, begin, begin + 1);
    bool as_last = meets_all(o.bodies[0]) && has_values(o, {begin, end - 1});
    walk(o, as_last ? end - 1 : begin + 1, end);
    return true;
  }

  bool meets_all(const Block& body) const {
    return std::ranges::all_of(body, [&](const Op& op) {
      if (op.code != OpCode::kLoad) return true;
      auto reach = state_.graph.reaches.find({&op, 0, state_.rank});
      return reach != state_.graph.reaches.end() && reach->second.meets;
    });
  }

  // Whether all that iterations compute is there and moderate, whatever tables say.
  bool has_values(const Op& loop, const ValueRange& iterations) {
    state_.scope.set(loop.var, iterations);
    std::set<int> later;  // variables that hold what the iteration before has set
    for (const Op& op : loop.bodies[0]) {
      if (op.code == OpCode::kLet) later.insert(op.var);
    }
    for (const Op& op : loop.bodies[0]) {
      if (op.code == OpCode::kLet && stretto::uses_any(op.exprs[0], later)) return false;
      if (op.code == OpCode::kLet) later.erase(op.var);
    }
    return has_values(loop.bodies[0]);
  }

  bool has_values(const Block& block) {
    return std::ranges::all_of(block, [&](const Op& op) {
      bool all = std::ranges::all_of(op.exprs, [&](const Expr& e) { return has_value(e); });
      if (op.region) {
        all = all && has_value(op.region->row_end) && has_value(op.region->col_end);
        for (const Expr& e : op.region->origin) all = all && has_value(e);
      }
      for (const Block& body : op.bodies) all = all && has_values(body);
      if (all && op.code == OpCode::kLet) state_.scope.set_to(op.var, op.exprs[0]);
      return all;
    });
  }

  bool has_value(const Expr& expr) {
    constexpr std::int64_t kModerate = std::int64_t{1} << 40, kFactor = std::int64_t{1} << 20;
    if (!expr.has_value()) return true;
    const ExprNode& n = expr.node();
    if (!std::ranges::all_of(n.args, [&](const Expr& arg) { return has_value(arg); })) return false;
    bool by_number = n.args.size() == 2 && n.args[1].is_const() && n.args[1].const_value() > 0 &&
                     n.args[1].const_value() < kFactor;
    bool divides = n.op == ExprOp::kFloorDiv || n.op == ExprOp::kMod;
    bool multiplies = n.op == ExprOp::kMul;
    if ((divides || multiplies) && !by_number) return false;
    if (n.op == ExprOp::kTable && !has_entries(n)) return false;
    ValueRange r = state_.scope.range(expr);
    return r.lo > -kModerate && r.hi < kModerate;
  }

  bool has_entries(const ExprNode& table) {
    auto t = static_cast<std::size_t>(table.value);
    const Tensor& tensor = program_.tensors[t];
    if (!nobody_writes(tensor) || tensor.contract.kind == ContractKind::kNone) return false;
    for (std::size_t d = 0; d < table.args.size(); ++d) {
      ValueRange index = state_.scope.range(table.args[d]);
      if (index.lo < 0 || index.hi >= state_.graph.shapes[t][d]) return false;
    }
    return true;
  }

  // A table decides how often: each iteration is there under a condition.
  void open_loop(const Op& o, const ValueRange& begin, const ValueRange& end) {
    bool synchronises = loops_.of(o).synchronises && !only_stores_;
    std::int64_t trips = apply(ExprOp::kSub, end.hi, begin.lo);
    bool whole = table_loops_ == TableLoops::kWhole;
    if (whole && trips > most_turns_ / num_tiles_) throw TooManyTurns{};
    if (trips > (only_stores_ ? kMostStored : most_turns_) - open_trips_) {
      if (whole) throw TooManyTurns{};
      throw DependsOnTable{"too much of what is done"};
    }
    open_trips_ += trips;
    for (std::int64_t i = 0; i < trips; ++i) {
      state_.budget.step(o.loc);
      Expr index = begin.exact() ? Expr(begin.lo + i) : o.exprs[0] + i;
      Expr condition = index < o.exprs[1];
      state_.scope.set_to(o.var, index);
      if (!only_stores_) open_loops_.let(o.var, index);
      if (state_.scope.range(condition).exact()) {
        if (state_.scope.range(condition).lo != 0) block(o.bodies[0]);
        continue;
      }
      std::optional<TablePoint> part;
      if (begin.exact()) part = conditions_.part_of_iteration(begin.lo + i, o.exprs[1]);
      std::vector<int> facts;
      bool told = state_.deciding.any;
      if (told && part) facts.push_back(state_.graph.choices->fact(inhabited_from(*part)));
      if (told && !part) told = conditions_.fact_of(condition, facts);
      if (synchronises && !told) throw DependsOnTable{"how often a loop synchronises"};
      state_.untold_depth += told ? 0 : 1;
      under(facts, part, o.bodies[0]);
      state_.untold_depth -= told ? 0 : 1;
    }
  }

  // The agents meet in place of the loop; what it stores is written down by itself.
  void take_turns(const Op& o, const ValueRange& begin, const ValueRange& end) {
    open_loops_.begin_turns(o);
    state_.scope.set(o.var, ValueRange{begin.lo, end.hi - 1});
    ++state_.may_depth;
    ++state_.untold_depth;
    one_turn(o.bodies[0]);
    --state_.untold_depth;
    --state_.may_depth;
    open_loops_.end_turns(o);
    if (!loops_.of(o).writes) return;
    only_stores_ = true;
    open_loop(o, begin, end);
    only_stores_ = false;
  }

  void one_turn(const Block& block) {
    for (const Op& o : block) {
      if (o.code == OpCode::kLet) let(o);
      if (o.code == OpCode::kLoad || o.code == OpCode::kPipePut) read(o);
      if (o.bodies.empty() || is_register_choice(o)) continue;
      if (open_loops_.is_taken_in_turn(o)) {
        open_loops_.take_in_turn(o);
        read_all(o);
        continue;
      }
      open_loops_.turns_if(o.exprs[0]);
      one_turn(o.bodies[0]);
    }
  }

  // In a loop that was taken whole but for these. Its tables were read.
  void store_alone(const Op& o) {
    if (o.code == OpCode::kLet) return let_alone(o);
    if (o.code == OpCode::kStore) {
      return each_choice(o.region, [&] { accesses_.access(o, AccessKind::kWrite); });
    }
    if (o.code == OpCode::kWhen && stores(o.bodies[0])) each_choice(o, 1, [&] { when(o); });
  }

  static bool stores(const Block& block) {
    return std::ranges::any_of(block, [](const Op& o) {
      return o.code == OpCode::kStore || std::ranges::any_of(o.bodies, stores);
    });
  }

  void counted_loop(const Op& o) {
    if (table_loops_ != TableLoops::kNone) throw DependsOnTable{"how often a loop over slots runs"};
    if (!trips_.wanted()) return read_all(o);
    trips_.fix(o);
    loop(o);
  }

  // All reads of a loop, or of loops and what is under one condition with them, are looked at
  // together, in the place of one iteration that may be any.
  void read_all(const Op& o) {
    if (o.code == OpCode::kLoop) {
      std::int64_t first = state_.scope.range(o.exprs[0]).lo;
      std::int64_t last = state_.scope.range(o.exprs[1]).hi - 1;
      if (last < first) return;
      state_.scope.set(o.var, ValueRange{first, last});
      open_loops_.forget(o.var);
    }
    ++state_.may_depth;
    ++state_.untold_depth;
    for (const Op& inner : o.bodies[0]) {
      if (inner.code == OpCode::kLet) let(inner);
      if (inner.code == OpCode::kLoad || inner.code == OpCode::kPipePut) read(inner);
      if (inner.code == OpCode::kLoop) read_all(inner);
    }
    --state_.untold_depth;
    --state_.may_depth;
  }

  void pass_slot(const Op& o) {
    if (part_turn_ && !looking_) refuse_turns_of_part();  // how many are passed is not known
    bool puts = o.code == OpCode::kPipePut;
    if (looking_) return puts ? read(o) : void();
    auto role = static_cast<std::size_t>(state_.recorder.agent().role);
    bool whole = table_loops_ != TableLoops::kNone;
    if (!trips_.wanted() && !whole && state_.deciding.leaves_out(role, o.symbol)) {
      if (puts && !reads_own_inputs({o}, program_)) throw DependsOnTable{"how often a pipe moves"};
      return puts ? read(o) : void();
    }
    switch (o.code) {
      case OpCode::kPipePut:
        syncs_.begin_put(o);
        read(o);
        return syncs_.end_put(o);
      case OpCode::kPipeFill:
        return syncs_.pipe_fill(o);
      case OpCode::kPipeGet:
        return syncs_.pipe_get(o);
      default:
        return syncs_.pipe_release(o);
    }
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
    const LoopShape& shape = loops_.of(o);
    all_do_as_last(o, shape.conditions, counted, end);
    walk(o, begin, counted);
    if (syncs_.hold_slots(shape.chosen)) all_do_as_last(o, shape.choices, counted, end);
    looking_ = true;
    counted_ = look(o, counted, end);
    looking_ = false;
    walk(o, end - 1, end);
    counted_.reset();
  }

  // What holds of the first and the last of these iterations holds of those in between.
  void all_do_as_last(const Op& o, const std::vector<Expr>& conditions, std::int64_t first,
                      std::int64_t end) {
    for (const Expr& condition : conditions) {
      if (holds(o, condition, first) != holds(o, condition, end - 1)) throw UnevenPipeLoops{};
    }
  }

  bool holds(const Op& o, const Expr& condition, std::int64_t iteration) {
    state_.scope.set(o.var, iteration);
    return state_.scope.value(condition, "condition") != 0;
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
  TableLoops table_loops_;
  std::int64_t most_turns_;
  ExpandState state_;
  AccessExpander accesses_;
  SyncExpander syncs_;
  Conditions conditions_;
  SteadyRuns runs_;
  SizeConditions sizes_;
  OpenLoops open_loops_;
  LocalRoles local_roles_;
  const LocalRoles::Local* local_ = nullptr;  // the role, where its tiles are not walked
  TripCounts trips_;
  LoopShapes loops_;
  PipeLoops pipe_loops_;
  bool looking_ = false;               // at accesses alone
  bool in_run_ = false;                // of slots
  std::optional<PartTurn> part_turn_;  // that is walked
  bool only_stores_ = false;           // what else a loop does has been taken whole
  std::int64_t open_trips_ = 0;
  std::int64_t num_tiles_ = 1;   // of the role's agents, on all ranks
  std::int64_t num_cases_ = 1;   // of the deciding entries in hand
  std::optional<Look> counted_;  // to the iteration being walked
};

InstanceGraph walked(const Program& program, const std::vector<std::int64_t>& extents,
                     Wanted wanted) {
  try {
    return Expander(program, extents, wanted).run();
  } catch (const UnevenPipeLoops&) {
    wanted.pipe_loops = PipeLoopMode::kWalk;
    return Expander(program, extents, wanted).run();
  }
}

// Loops over slots that tables end are taken whole, if there are any and all of them fit; those in
// which tiles take turns where too much would be walked.
std::optional<InstanceGraph> with_table_loops(const Program& program,
                                              const std::vector<std::int64_t>& extents,
                                              Wanted wanted) {
  if (deciding_tables(program).counted_loops.empty()) return {};
  for (TableLoops loops : {TableLoops::kWhole, TableLoops::kTurns}) {
    wanted.table_loops = loops;
    try {
      return walked(program, extents, wanted);
    } catch (const TooManyTurns&) {
      continue;
    } catch (const DependsOnTable&) {
      break;
    } catch (const Rejected&) {  // slots may come out uneven for what does not fit
      break;
    }
  }
  return {};
}

}  // namespace

InstanceGraph expand(const Program& program, const std::vector<std::int64_t>& extents,
                     const TableWitness* witness, PipeLoopMode pipe_loops,
                     std::optional<std::int64_t> trips, std::int64_t most_turns) {
  Wanted wanted{.witness = witness, .pipe_loops = pipe_loops, .trips = trips};
  std::optional<InstanceGraph> whole;
  if (witness == nullptr && !trips) {
    Wanted by_pattern = wanted;
    by_pattern.most_turns = most_turns;
    whole = with_table_loops(program, extents, by_pattern);
  }
  InstanceGraph graph = whole ? std::move(*whole) : walked(program, extents, wanted);
  link_packets(graph);
  link_landings(graph);
  return graph;
}

InstanceGraph expand_with_runs(const Program& program, const std::vector<std::int64_t>& extents) {
  Wanted wanted{.pipe_loops = PipeLoopMode::kFold, .runs = true};
  if (!deciding_tables(program).counted_loops.empty()) {
    throw DependsOnTable{"how often a loop over slots runs"};
  }
  for (;;) {
    try {
      InstanceGraph graph = walked(program, extents, wanted);
      link_packets(graph);
      link_landings(graph);
      return graph;
    } catch (const UnevenRuns& uneven) {
      ++wanted.uneven_runs[uneven.role];
    }
  }
}

InstanceGraph expand(const Program& program, const SizeAxes& axes, SizeRegion& region,
                     LoopsShown* shown) {
  LoopsShown own;
  Wanted wanted{.pipe_loops = PipeLoopMode::kFold,
                .region = &region,
                .shown = shown != nullptr ? shown : &own};
  std::vector<std::int64_t> extents = extents_at(axes, region.sample());
  auto walk = [&]() -> std::optional<InstanceGraph> {
    try {
      return walked(program, extents, wanted);
    } catch (const NotAlone&) {
      wanted.local_loops = false;
    } catch (const UnevenRuns& uneven) {
      ++wanted.uneven_runs[uneven.role];
    }
    return {};
  };
  std::optional<InstanceGraph> found;
  while (!found) found = walk();
  InstanceGraph graph = std::move(*found);
  if (region.masks_open()) settle_masks(graph, region);
  link_packets(graph);
  link_landings(graph);
  if (!region.masks_open()) {
    region.keep_all_orders();
    note_spans(graph, region);
  }
  return graph;
}

}  // namespace stretto
