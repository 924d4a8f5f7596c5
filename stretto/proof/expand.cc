#include "stretto/proof/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/proof/eval_scope.h"
#include "stretto/proof/loop_fold.h"
#include "stretto/proof/overlap.h"

namespace stretto {
namespace {

struct BoxHash {
  std::size_t operator()(const Box& b) const {
    std::size_t h = 0;
    for (std::size_t d = 0; d < kMaxDims; ++d) {
      h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.lo[d]);
      h = h * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(b.hi[d]);
    }
    return h ^ (h >> 29);
  }
};

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// How far one worker has come with each of its pipes and barriers.
struct WorkerState {
  struct PipeUse {
    std::int64_t puts = 0, gets = 0, releases = 0;
  };
  std::vector<PipeUse> pipes;
  std::map<std::pair<int, int>, std::int64_t> phases;  // (agent, barrier)
  int first_counter = 0;
};

// What one agent holds between a get and the release: asynchronous dots read the slot until
// awaited.
struct AgentState {
  std::map<int, std::pair<int, std::int64_t>> slot_of_register;  // register -> (pipe, ordinal)
  std::deque<std::vector<std::pair<int, std::int64_t>>> dots;    // slots each pending dot reads
};

// An access of a loop being folded, not yet in the trace.
struct PendingAccess {
  const Op* op;
  int which;  // which of the operation's accesses
  Access access;
  Box box;
};

struct Target {
  LooseBox box;
  int rank = 0;
  bool exact = true;  // false: `box` is a union over a table's values
};

class Expander {
 public:
  Expander(const Program& program, const std::vector<std::int64_t>& extents,
           const TableWitness* witness)
      : program_(program), witness_(witness), scope_(program, {0}, witness) {
    graph_.program = &program;
    graph_.extents = extents;
  }

  InstanceGraph run() {
    fix_shapes();
    number_counters();
    for (int rank = 0; rank < program_.world_size; ++rank) expand_rank(rank);
    graph_.first_agent.push_back(static_cast<int>(graph_.agents.size()));
    return std::move(graph_);
  }

 private:
  [[noreturn]] void reject(const Op& op, const std::string& what) const {
    throw Rejected(fmt::format("{}: {} of {}: {}", describe_loc(&op), op_info(op.code).name,
                               program_.name, what));
  }

  void fix_shapes() {
    std::vector<std::int64_t> vars = initial_vars(program_, 0, graph_.extents);
    for (const Tensor& tensor : program_.tensors) {
      if (tensor.shape.size() > kMaxDims) {
        throw Rejected(fmt::format("tensor '{}' has {} dimensions, the proof knows {}", tensor.name,
                                   tensor.shape.size(), kMaxDims));
      }
      auto& shape = graph_.shapes.emplace_back();
      for (const Expr& dim : tensor.shape) shape.push_back(eval(dim, vars));
    }
  }

  void number_counters() {
    for (std::size_t s = 0; s < program_.signals.size(); ++s) {
      first_counter_.push_back(static_cast<int>(graph_.counters.size()));
      for (int rank = 0; rank < program_.world_size; ++rank) {
        for (std::int64_t c = 0; c < program_.signals[s].num_channels; ++c) {
          add_counter({.kind = CounterKind::kSignal,
                       .rank = rank,
                       .symbol = static_cast<int>(s),
                       .channel = c});
        }
      }
    }
  }

  int add_counter(const Counter& counter) {
    graph_.counters.push_back(counter);
    graph_.quota.push_back(0);
    return static_cast<int>(graph_.counters.size()) - 1;
  }

  void expand_rank(int rank) {
    graph_.first_agent.push_back(static_cast<int>(graph_.agents.size()));
    rank_ = rank;
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

  void start_agent(const AgentTrace& trace) {
    graph_.agents.push_back(trace);
    trace_ = &graph_.agents.back();
    agent_state_ = {};
    tile_ = -1;
    scope_ = EvalScope(program_, initial_vars(program_, rank_, graph_.extents), witness_);
  }

  void expand_worker(int role_idx, int worker) {
    const Role& role = program_.roles[at(role_idx)];
    worker_ = {};
    worker_.pipes.resize(role.pipes.size());
    worker_.first_counter = static_cast<int>(graph_.counters.size());
    Counter counter{.rank = rank_, .role = role_idx, .worker = worker};
    for (std::size_t p = 0; p < role.pipes.size(); ++p) {
      counter.symbol = static_cast<int>(p);
      counter.kind = CounterKind::kPipeFull;
      add_counter(counter);
      counter.kind = CounterKind::kPipeEmpty;
      add_counter(counter);
    }
    for (std::size_t b = 0; b < role.barriers.size(); ++b) {
      counter.symbol = static_cast<int>(b);
      counter.kind = CounterKind::kBarrier;
      add_counter(counter);
    }
    for (std::size_t a = 0; a < role.agents.size(); ++a) {
      start_agent({.rank = rank_,
                   .phase = Phase::kRoles,
                   .role = role_idx,
                   .worker = worker,
                   .agent = static_cast<int>(a)});
      role_ = &role;
      std::int64_t num_tiles = scope_.value(role.num_tiles, "number of tiles");
      for (std::int64_t t = worker; t < num_tiles; t += role.resource.num_workers) {
        tile_ = t;
        scope_.set(role.tile_var, t);
        block(role.agents[a].body);
      }
      role_ = nullptr;
    }
    check_balance(role, worker);
  }

  void check_balance(const Role& role, int worker) const {
    for (std::size_t p = 0; p < role.pipes.size(); ++p) {
      const auto& use = worker_.pipes[p];
      if (use.puts == use.gets && use.gets == use.releases) continue;
      throw Rejected(fmt::format(
          "{}:{}: pipe '{}' of role '{}' (rank {}, worker {}): {} puts, {} gets, {} releases per "
          "launch; they must be equal",
          role.loc.file, role.loc.line, role.pipes[p].name, role.name, rank_, worker, use.puts,
          use.gets, use.releases));
    }
    for (std::size_t b = 0; b < role.barriers.size(); ++b) {
      auto counter = at(worker_.first_counter) + 2 * role.pipes.size() + b;
      if (graph_.quota[counter] % role.barriers[b].num_arrivals == 0) continue;
      throw Rejected(
          fmt::format("{}:{}: barrier '{}' of role '{}' (rank {}, worker {}): {} "
                      "arrivals per launch, not a multiple of {}",
                      role.loc.file, role.loc.line, role.barriers[b].name, role.name, rank_, worker,
                      graph_.quota[counter], role.barriers[b].num_arrivals));
    }
  }

  void block(const Block& ops) {
    for (const Op& o : ops) op(o);
  }

  void op(const Op& o) {
    switch (o.code) {
      case OpCode::kLet:
        return let(o);
      case OpCode::kLoad:
        return access(o, *o.region, AccessKind::kRead);
      case OpCode::kLoadRows:
      case OpCode::kStoreRows:
        return scattered(o);
      case OpCode::kStore:
        return access(o, *o.region, AccessKind::kWrite);
      case OpCode::kReduceStore:
        return access(o, *o.region, AccessKind::kReduce);
      case OpCode::kCopy:
        return copy(o);
      case OpCode::kStorePacket:
      case OpCode::kLoadPacket:
        return packet(o);
      case OpCode::kFence:
        return add_sync({.kind = SyncKind::kFence, .op = &o});
      case OpCode::kNotify:
      case OpCode::kWait:
        return signal(o);
      case OpCode::kLoop:
        return loop(o);
      case OpCode::kWhen:
        return when(o);
      case OpCode::kPipePut:
      case OpCode::kPipeGet:
      case OpCode::kPipeRelease:
        return pipe(o);
      case OpCode::kArrive:
      case OpCode::kBarrierSync:
        return barrier(o);
      case OpCode::kDotAsync:
      case OpCode::kAwait:
        return async_dot(o);
      default:
        if (op_info(o.code).synchronises || !op_info(o.code).schedule_level) {
          reject(o, "tile primitives must be resolved before the proof");
        }
    }
  }

  // --- index ---
  void let(const Op& o) {
    table_reads(o, o.exprs[0]);
    scope_.set(o.var, scope_.range(o.exprs[0]));
  }

  void table_reads(const Op& o, const Expr& expr) {
    if (!uses_table(expr)) return;
    const ExprNode& n = expr.node();
    for (const Expr& arg : n.args) table_reads(o, arg);
    if (n.op != ExprOp::kTable) return;
    Target target{.rank = rank_};
    target.box.limit = tensor_box(static_cast<int>(n.value));
    target.box.size.fill(1);
    for (std::size_t d = 0; d < n.args.size(); ++d) {
      ValueRange r = scope_.range(n.args[d]);
      target.box.origin[d] = r.lo;
      target.box.size[d] = r.hi - r.lo + 1;
    }
    add_access(o, 2, static_cast<int>(n.value), target, AccessKind::kRead);
  }

  // --- accesses ---
  Box tensor_box(int tensor) const {
    Box box;
    box.hi.fill(1);
    const auto& shape = graph_.shapes[at(tensor)];
    std::copy(shape.begin(), shape.end(), box.hi.begin());
    return box;
  }

  Target resolve(const Region& region) {
    Target target{.rank = rank_};
    if (region.rank.has_value()) {
      target.rank = static_cast<int>(scope_.value(region.rank, "rank of an access"));
    }
    LooseBox& box = target.box;
    box.limit = tensor_box(region.tensor);
    box.size.fill(1);
    for (std::size_t d = 0; d < region.origin.size(); ++d) {
      ValueRange r = scope_.range(region.origin[d]);
      target.exact &= r.exact();
      box.origin[d] = r.lo;
      box.size[d] = r.hi - r.lo;
      if (static_cast<int>(d) == region.row_dim) {
        box.size[d] += region.rows;
      } else if (static_cast<int>(d) == region.col_dim) {
        box.size[d] += region.cols;
      } else {
        box.size[d] += 1;
      }
    }
    if (region.row_dim >= 0) limit(target, region.row_dim, region.row_end);
    limit(target, region.col_dim, region.col_end);
    return target;
  }

  void limit(Target& target, int dim, const Expr& end) {
    if (!end.has_value()) return;
    ValueRange r = scope_.range(end);
    target.exact &= r.exact();
    target.box.limit.hi[at(dim)] = std::min(target.box.limit.hi[at(dim)], r.hi);
  }

  void access(const Op& o, const Region& region, AccessKind kind) {
    if (program_.tensors[at(region.tensor)].packet) {
      reject(o, fmt::format("'{}' is a packet buffer: only packet loads and stores may touch it",
                            program_.tensors[at(region.tensor)].name));
    }
    add_access(o, 0, region.tensor, resolve(region), kind);
  }

  // Rows picked by register values: any row of the tensor.
  void scattered(const Op& o) {
    const Region& region = *o.region;
    if (region.row_dim < 0) reject(o, "needs a row dimension");
    Target target = resolve(region);
    target.box.origin[at(region.row_dim)] = 0;
    target.box.size[at(region.row_dim)] = graph_.shapes[at(region.tensor)][at(region.row_dim)];
    bool writes = o.code == OpCode::kStoreRows;
    if (writes && program_.tensors[at(region.tensor)].kind == TensorKind::kOutput) {
      reject(o, fmt::format("rows of output '{}' are chosen at run time, so it cannot be shown "
                            "that each is written exactly once",
                            program_.tensors[at(region.tensor)].name));
    }
    may_depth_ += writes ? 1 : 0;
    add_access(o, 0, region.tensor, target, writes ? AccessKind::kWrite : AccessKind::kRead);
    may_depth_ -= writes ? 1 : 0;
  }

  // Elements masked at the destination are not read at the source.
  void copy(const Op& o) {
    Target from = resolve(*o.region), to = resolve(*o.region2);
    if (from.exact && to.exact) {
      mask_source(from.box, o.region->row_dim, to.box, o.region2->row_dim);
      mask_source(from.box, o.region->col_dim, to.box, o.region2->col_dim);
    }
    if (program_.tensors[at(o.region->tensor)].packet ||
        program_.tensors[at(o.region2->tensor)].packet) {
      reject(o, "packet buffers cannot be copied");
    }
    if (is_empty(clip(to.box))) return;
    add_access(o, 0, o.region->tensor, from, AccessKind::kRead);
    add_access(o, 1, o.region2->tensor, to, AccessKind::kWrite);
  }

  static void mask_source(LooseBox& from, int from_dim, const LooseBox& to, int to_dim) {
    if (from_dim < 0 || to_dim < 0) return;
    auto f = at(from_dim), t = at(to_dim);
    std::int64_t shift = from.origin[f] - to.origin[t];
    from.limit.lo[f] = std::max(from.limit.lo[f], to.limit.lo[t] + shift);
    from.limit.hi[f] = std::min(from.limit.hi[f], to.limit.hi[t] + shift);
  }

  int check_target(const Op& o, int tensor_idx, const Target& target, AccessKind kind) const {
    const Tensor& tensor = program_.tensors[at(tensor_idx)];
    if (target.rank < 0 || target.rank >= program_.world_size) {
      reject(o, fmt::format("rank {} of {}, seen from rank {}", target.rank, program_.world_size,
                            rank_));
    }
    if (target.rank != rank_ && tensor.space == Space::kLocal) {
      reject(o, fmt::format("rank {} reaches for local tensor '{}' of rank {}", rank_, tensor.name,
                            target.rank));
    }
    if (kind != AccessKind::kRead && tensor.kind == TensorKind::kInput) {
      reject(o, fmt::format("input '{}' is written", tensor.name));
    }
    return tensor_idx;
  }

  void add_access(const Op& o, int which, int tensor, const Target& target, AccessKind kind,
                  bool packet = false) {
    check_target(o, tensor, target, kind);
    bool is_write = kind != AccessKind::kRead;
    Access a{.tensor = tensor,
             .rank = target.rank,
             .kind = kind,
             .may = is_write && (may_depth_ > 0 || !target.exact),
             .packet = packet,
             .tile = tile_,
             .op = &o};
    if (a.may && program_.tensors[at(tensor)].kind == TensorKind::kOutput) {
      throw DependsOnTable{"where an output is written"};
    }
    if (affine_ != nullptr) {
      affine_->push_back({a, which, target.box});
      return;
    }
    place(a, which, clip(target.box));
  }

  // Into the loop being folded, or into the trace.
  void place(const Access& a, int which, const Box& box) {
    if (is_empty(box)) return;
    if (fold_depth_ == 0 || ordered_) return append(a, box);
    for (PendingAccess& p : pending_) {
      if (p.op != a.op || p.which != which) continue;
      bool same = p.access.tensor == a.tensor && p.access.rank == a.rank && p.access.may == a.may;
      if (same && extend_box(p.box, box, a.kind == AccessKind::kWrite && !a.may)) return;
      append(p.access, p.box);
      p.access = a;
      p.box = box;
      return;
    }
    pending_.push_back({a.op, which, a, box});
  }

  void append(Access a, const Box& box) {
    auto [it, is_new] = box_ids_.try_emplace(box, static_cast<int>(graph_.boxes.size()));
    if (is_new) graph_.boxes.push_back(box);
    a.box = it->second;
    a.pos = static_cast<int>(trace_->syncs.size());
    trace_->accesses.push_back(a);
  }

  void flush() {
    for (const PendingAccess& p : pending_) append(p.access, p.box);
    pending_.clear();
  }

  // A store releases its packets after writing; a load reads after the tags have come.
  void packet(const Op& o) {
    bool stores = o.code == OpCode::kStorePacket;
    const Region& region = *o.region;
    if (!program_.tensors[at(region.tensor)].packet) reject(o, "needs a packet buffer");
    if (may_depth_ > 0) throw DependsOnTable{"whether a packet is stored or loaded"};
    Target target = resolve(region);
    if (!target.exact) throw DependsOnTable{"where a packet lies"};
    widen_to_packets(o, region, target.box);
    Sync sync{.kind = stores ? SyncKind::kPacketStore : SyncKind::kPacketLoad, .op = &o};
    if (!is_empty(clip(target.box))) {
      sync.access = static_cast<int>(trace_->accesses.size());
    }
    if (stores) add_access(o, 0, region.tensor, target, AccessKind::kWrite, true);
    add_sync(sync);
    if (!stores) add_access(o, 0, region.tensor, target, AccessKind::kRead, true);
  }

  // Four payload bytes share a tag, so elements of one packet cannot be told apart.
  void widen_to_packets(const Op& o, const Region& region, LooseBox& box) const {
    const Tensor& tensor = program_.tensors[at(region.tensor)];
    auto per_packet =
        static_cast<std::int64_t>(4 / std::min<std::size_t>(4, size_bytes(tensor.dtype)));
    if (per_packet == 1) return;
    auto last = tensor.shape.size() - 1;
    if (bound_shape(program_, region.tensor)[last] % per_packet != 0) {
      reject(o, fmt::format("rows of packet buffer '{}' must be whole packets of {} elements",
                            tensor.name, per_packet));
    }
    Box cut = clip(box);
    if (is_empty(cut)) return;
    auto round_up = [&](std::int64_t v) { return ceil_div(v, per_packet) * per_packet; };
    box.limit.hi[last] = round_up(cut.hi[last]);
    std::int64_t lo = cut.lo[last] / per_packet * per_packet;
    box.size[last] = box.limit.hi[last] - lo;
    box.origin[last] = lo;
  }

  // --- synchronisation ---
  void add_sync(Sync sync) {
    sync.tile = tile_;
    trace_->syncs.push_back(sync);
    if (sync.kind == SyncKind::kNotify) graph_.quota[at(sync.counter)] += sync.amount;
  }

  void signal(const Op& o) {
    if (may_depth_ > 0) throw DependsOnTable{"whether a signal is sent or waited for"};
    const Signal& s = program_.signals[at(o.symbol)];
    std::int64_t channel = scope_.value(o.exprs[0], "channel of a signal");
    if (channel < 0 || channel >= s.num_channels) {
      reject(o, fmt::format("channel {} of '{}', which has {}, on rank {}", channel, s.name,
                            s.num_channels, rank_));
    }
    bool is_wait = o.code == OpCode::kWait;
    std::int64_t rank = is_wait ? rank_ : scope_.value(o.exprs[1], "rank that is notified");
    if (rank < 0 || rank >= program_.world_size) {
      reject(o, fmt::format("rank {} of {}, on rank {}", rank, program_.world_size, rank_));
    }
    std::int64_t amount = scope_.value(o.exprs[is_wait ? 1 : 2], "amount of a signal");
    if (!is_wait && amount < 0) reject(o, fmt::format("amount {} is negative", amount));
    if (!is_wait && amount == 0) return;
    add_sync({.kind = is_wait ? SyncKind::kWait : SyncKind::kNotify,
              .counter =
                  first_counter_[at(o.symbol)] + static_cast<int>(rank * s.num_channels + channel),
              .amount = amount,
              .op = &o});
  }

  void pipe(const Op& o) {
    if (may_depth_ > 0) throw DependsOnTable{"whether a pipe moves"};
    auto& use = worker_.pipes[at(o.symbol)];
    const Pipe& p = role_->pipes[at(o.symbol)];
    int full = worker_.first_counter + 2 * o.symbol, empty = full + 1;
    if (o.code == OpCode::kPipePut) {
      std::int64_t released = ++use.puts - p.num_slots;
      if (released > 0) {
        add_sync({.kind = SyncKind::kWait, .counter = empty, .amount = released, .op = &o});
      }
      access(o, *o.region, AccessKind::kRead);
      add_sync({.kind = SyncKind::kNotify, .counter = full, .amount = 1, .op = &o});
    } else if (o.code == OpCode::kPipeGet) {
      add_sync({.kind = SyncKind::kWait, .counter = full, .amount = ++use.gets, .op = &o});
      agent_state_.slot_of_register[o.result] = {o.symbol, use.gets};
    } else {
      if (++use.releases > use.gets) {
        reject(o, fmt::format("releases a slot of pipe '{}' that was not got", p.name));
      }
      for (const auto& slots : agent_state_.dots) {
        if (std::find(slots.begin(), slots.end(), std::pair{o.symbol, use.releases}) !=
            slots.end()) {
          reject(o, fmt::format("releases a slot of pipe '{}' that a pending dot_async still reads",
                                p.name));
        }
      }
      add_sync({.kind = SyncKind::kNotify, .counter = empty, .amount = 1, .op = &o});
    }
  }

  void async_dot(const Op& o) {
    if (o.code == OpCode::kAwait) {
      auto keep = static_cast<std::size_t>(scope_.value(o.exprs[0], "dots to await"));
      while (agent_state_.dots.size() > keep) agent_state_.dots.pop_front();
      return;
    }
    std::vector<std::pair<int, std::int64_t>> slots;
    for (int reg : o.operands) {
      auto it = agent_state_.slot_of_register.find(reg);
      if (it != agent_state_.slot_of_register.end()) slots.push_back(it->second);
    }
    agent_state_.dots.push_back(std::move(slots));
  }

  void barrier(const Op& o) {
    if (may_depth_ > 0) throw DependsOnTable{"whether a barrier is reached"};
    int counter = worker_.first_counter + 2 * static_cast<int>(role_->pipes.size()) + o.symbol;
    add_sync({.kind = SyncKind::kNotify, .counter = counter, .amount = 1, .op = &o});
    std::int64_t phase = ++worker_.phases[{trace_->agent, o.symbol}];
    if (o.code == OpCode::kArrive) return;
    add_sync({.kind = SyncKind::kWait,
              .counter = counter,
              .amount = phase * role_->barriers[at(o.symbol)].num_arrivals,
              .op = &o});
  }

  // --- control ---
  void when(const Op& o) {
    ValueRange condition = scope_.range(o.exprs[0]);
    if (condition.exact()) return block(o.bodies[condition.lo != 0 ? 0 : 1]);
    if (loops_.of(o).synchronises) throw DependsOnTable{"whether a signal is sent or waited for"};
    ++may_depth_;
    block(o.bodies[0]);
    block(o.bodies[1]);
    --may_depth_;
  }

  void loop(const Op& o) {
    ValueRange begin = scope_.range(o.exprs[0]), end = scope_.range(o.exprs[1]);
    const LoopShape& shape = loops_.of(o);
    bool open = !begin.exact() || !end.exact();
    if (open && shape.synchronises) throw DependsOnTable{"how often a loop synchronises"};
    if (end.hi <= begin.lo) return;
    may_depth_ += open ? 1 : 0;
    if (shape.synchronises) {
      walk(o, begin.lo, end.hi);
    } else {
      bool outermost = fold_depth_++ == 0;
      if (outermost) ordered_ = shape.ordered;
      if (shape.affine) {
        walk_affine(o, begin.lo, end.hi);
      } else {
        walk(o, begin.lo, end.hi);
      }
      --fold_depth_;
      if (outermost) flush();
    }
    may_depth_ -= open ? 1 : 0;
  }

  void walk(const Op& o, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      scope_.set(o.var, i);
      block(o.bodies[0]);
    }
  }

  struct AffineAccess {
    Access access;
    int which;
    LooseBox box;
  };

  // Two iterations tell how every box moves.
  void walk_affine(const Op& o, std::int64_t begin, std::int64_t end) {
    std::vector<AffineAccess> first, second;
    affine_ = &first;
    walk(o, begin, begin + 1);
    affine_ = &second;
    walk(o, begin + (end - begin > 1 ? 1 : 0), begin + (end - begin > 1 ? 2 : 1));
    affine_ = nullptr;
    STRETTO_CHECK(first.size() == second.size(), "an affine loop repeats its accesses");
    for (std::size_t i = 0; i < first.size(); ++i) {
      const Access& a = first[i].access;
      bool is_write = a.kind == AccessKind::kWrite && !a.may;
      auto folded = fold_affine(first[i].box, second[i].box, end - begin, is_write);
      if (folded) {
        place(a, first[i].which, clip(*folded));
        continue;
      }
      LooseBox box = first[i].box;
      for (std::int64_t k = begin; k < end; ++k) {
        place(a, first[i].which, clip(box));
        for (std::size_t d = 0; d < kMaxDims; ++d) {
          box.origin[d] += second[i].box.origin[d] - first[i].box.origin[d];
        }
      }
    }
  }

  const Program& program_;
  const TableWitness* witness_;
  InstanceGraph graph_;
  EvalScope scope_;
  LoopShapes loops_;
  std::unordered_map<Box, int, BoxHash> box_ids_;
  std::vector<int> first_counter_;  // per signal

  int rank_ = 0;
  std::int64_t tile_ = -1;
  AgentTrace* trace_ = nullptr;
  const Role* role_ = nullptr;
  WorkerState worker_;
  AgentState agent_state_;

  int may_depth_ = 0;   // inside what a table decides
  int fold_depth_ = 0;  // inside loops without synchronisation
  bool ordered_ = false;
  std::vector<PendingAccess> pending_;
  std::vector<AffineAccess>* affine_ = nullptr;
};

}  // namespace

InstanceGraph expand(const Program& program, const std::vector<std::int64_t>& extents,
                     const TableWitness* witness) {
  InstanceGraph graph = Expander(program, extents, witness).run();
  link_packets(graph);
  return graph;
}

}  // namespace stretto
