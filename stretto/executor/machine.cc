// In this order: construction, the instruction loop, where a region lies in memory, what operations
// do to memory, waiting and its opposite, tables. What they do to values is in values.h.
#include "stretto/executor/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/executor/product.h"
#include "stretto/executor/register_tile.h"
#include "stretto/executor/values.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

// Elements [r0, r1) x [c0, c1) of a register's tile.
TileRef valid_part(const Register& reg, const ClippedTile& t) {
  return sub_tile(tile_of(reg), t.r0, t.c0, t.num_rows(), t.num_cols());
}

// Ranks may add to the same element at the same time.
template <typename Bits>
void atomic_add(DType dtype, std::byte* at, double value) {
  std::atomic_ref<Bits> element(*reinterpret_cast<Bits*>(at));
  Bits before = element.load(std::memory_order_relaxed), after;
  do {
    store_element(dtype, &after, load_element(dtype, &before) + value);
  } while (!element.compare_exchange_weak(before, after, std::memory_order_relaxed));
}

void atomic_add(DType dtype, std::byte* at, double value) {
  switch (size_bytes(dtype)) {
    case 1:
      return atomic_add<std::uint8_t>(dtype, at, value);
    case 2:
      return atomic_add<std::uint16_t>(dtype, at, value);
    case 4:
      return atomic_add<std::uint32_t>(dtype, at, value);
    default:
      return atomic_add<std::uint64_t>(dtype, at, value);
  }
}

// Of the source what the destination has room for.
ClippedTile common_part(ClippedTile from, const ClippedTile& to) {
  auto cut = [&](std::int64_t& low, std::int64_t& high, int dim, std::int64_t to_low,
                 std::int64_t to_high) {
    std::int64_t begin = std::max(low, to_low), end = std::max(begin, std::min(high, to_high));
    if (dim >= 0) from.origin[dim] += begin - low;
    low = begin;
    high = end;
  };
  cut(from.r0, from.r1, from.row_dim, to.r0, to.r1);
  cut(from.c0, from.c1, from.col_dim, to.c0, to.c1);
  return from;
}

}  // namespace

RankMachine::RankMachine(ProgramCode code, const Quotas& quotas)
    : code_(std::move(code)), contracts_(code_, tensors, vars_) {
  const Program& p = program();
  STRETTO_CHECK(quotas.size() == p.signals.size(), "one quota per signal");
  for (std::size_t s = 0; s < p.signals.size(); ++s) {
    for (std::int64_t q : quotas[s][static_cast<std::size_t>(rank())]) {
      quota_.push_back(static_cast<std::uint64_t>(q));
    }
  }
  STRETTO_CHECK(static_cast<std::int64_t>(quota_.size()) == code_.num_counters,
                "one quota per counter");
  vars_ = initial_vars(p, rank(), extent_bounds(p));
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    TensorMem mem{.dtype = t.dtype, .packet = t.packet};
    mem.num_dims = static_cast<int>(t.shape.size());
    mem.elem_bytes = static_cast<std::int64_t>(size_bytes(t.dtype));
    std::copy(code_.tensors[i].shape.begin(), code_.tensors[i].shape.end(), mem.shape);
    std::copy(code_.tensors[i].stride.begin(), code_.tensors[i].stride.end(), mem.stride);
    mem.at.assign(static_cast<std::size_t>(p.world_size), nullptr);
    tensors.push_back(std::move(mem));
  }
  build_agents();
}

void RankMachine::build_agents() {
  std::size_t total = 2;
  for (const RoleCode& role : code_.roles) {
    total += role.agents.size() * static_cast<std::size_t>(role.role->resource.num_workers);
  }
  agents_.reserve(total);  // addresses are kept
  add_agent(code_.on_start, nullptr, -1, 0, nullptr);
  for (std::size_t r = 0; r < code_.roles.size(); ++r) {
    const RoleCode& role = code_.roles[r];
    std::size_t first = agents_.size();
    for (int w = 0; w < role.role->resource.num_workers; ++w) {
      workers_.push_back(std::make_unique<WorkerState>());
      for (const AgentCode& agent : role.agents) {
        add_agent(agent, &role, static_cast<int>(r), w, workers_.back().get());
        // Workers without a tile, which a wide role on a small tensor has many of, need no storage.
        if (w < role.max_tiles) allocate(agents_.back());
      }
    }
    role_spans_.emplace_back(agents_.data() + first, agents_.size() - first);
  }
  add_agent(code_.on_end, nullptr, -1, 0, nullptr);
  allocate(agents_.front());
  allocate(agents_.back());
}

void RankMachine::add_agent(const AgentCode& code, const RoleCode* role, int role_idx, int worker,
                            WorkerState* shared) {
  AgentState a{.code = &code, .role = role};
  a.id = static_cast<int>(agents_.size());
  a.role_idx = role_idx;
  a.worker = worker;
  a.shared = shared;
  a.vars = vars_;
  a.limits.assign(static_cast<std::size_t>(code.loop_depth), 0);
  agents_.push_back(std::move(a));
}

void RankMachine::allocate(AgentState& a) {
  const std::vector<ValueType>& values = a.code->agent->values;
  std::size_t total = a.code->scratch_bytes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (a.code->uses_register[i]) total += register_bytes(values[i]);
  }
  a.arena = allocate_aligned(total);
  std::byte* next = a.arena.get() + a.code->scratch_bytes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Register reg{values[i].dtype, values[i].rows, values[i].cols};
    if (a.code->uses_register[i]) {
      reg.own = reg.data = next;
      next += register_bytes(values[i]);
    }
    a.regs.push_back(reg);
  }
  if (a.role != nullptr && !a.shared->arena) a.shared->allocate(*a.role->role);
}

void RankMachine::begin_launch(std::span<const std::int64_t> extents, std::uint64_t epoch) {
  const Program& p = program();
  bool valid = extents.size() == code_.launch_vars.size();
  for (std::size_t i = 0; valid && i < extents.size(); ++i) {
    auto var = static_cast<std::size_t>(code_.launch_vars[i]);
    valid = extents[i] >= 0 && extents[i] <= p.vars[var].bound;
  }
  if (!valid) {
    initial_vars(p, rank(), {extents.begin(), extents.end()});  // throws, naming what is wrong
    throw InternalError("extents refused for no reason");
  }
  for (std::size_t i = 0; i < extents.size(); ++i) {
    vars_[static_cast<std::size_t>(code_.launch_vars[i])] = extents[i];
  }
  for (const DynamicDim& d : code_.dynamic_dims) {
    tensors[static_cast<std::size_t>(d.tensor)].shape[d.dim] = d.extent.eval(vars_);
  }
  for (auto& worker : workers_) {
    for (PipeState& pipe : worker->pipes) pipe.put = pipe.got = pipe.released = 0;
    for (RingState& ring : worker->rings) ring.held.clear(), ring.queued.clear();
    for (BarrierState& barrier : worker->barriers) barrier.arrivals = 0;
  }
  contracts_.begin_launch();
  epoch_ = epoch;
}

void RankMachine::start(AgentState& a) {
  a.park = Park::kNone;
  a.parked_ns = 0;
  a.pc = 0;
  a.tile = -1;
  a.num_tiles = 0;
  a.done = a.code->insts.size() == 1;
  if (a.role != nullptr) {
    a.num_tiles = a.role->num_tiles.eval(vars_);
    a.tile = a.worker;
    a.done = a.done || a.tile >= a.num_tiles;
  }
  if (a.done) return;
  if (!a.arena) allocate(a);
  std::copy(vars_.begin(), vars_.end(), a.vars.begin());
  if (a.role != nullptr) a.vars[static_cast<std::size_t>(a.role->role->tile_var)] = a.tile;
  if (recorder != nullptr) a.tile_begin_ns = Recorder::now_ns();
}

void RankMachine::start_roles(std::vector<AgentState*>& live) {
  for (std::size_t r = 0; r < role_spans_.size(); ++r) {
    const RoleCode& role = code_.roles[r];
    std::int64_t busy =
        std::clamp<std::int64_t>(role.num_tiles.eval(vars_), 0, role.role->resource.num_workers);
    auto count = static_cast<std::size_t>(busy) * role.agents.size();
    for (AgentState& a : role_spans_[r].first(count)) {
      start(a);
      if (!a.done) live.push_back(&a);
    }
  }
}

const char* RankMachine::role_name(const AgentState& a) const {
  if (a.role != nullptr && recorder != nullptr) {
    return role_names[static_cast<std::size_t>(a.role_idx)];
  }
  if (a.role != nullptr) return a.role->role->name.c_str();
  return &a == &agents_.front() ? "on_start" : "on_end";
}

RankMachine::Outcome RankMachine::run(AgentState& a) {
  const Inst* insts = a.code->insts.data();
  std::int64_t* vars = a.vars.data();
  current_ = &a;
  if (a.park != Park::kNone) unpark(a, insts[a.pc]);
  for (;;) {
    const Inst& inst = insts[a.pc];
    switch (inst.flow) {
      case Flow::kOp:
        if (!execute(a, inst)) return Outcome::kParked;
        ++a.pc;
        if (observer != nullptr && op_info(inst.code).synchronises) return Outcome::kYielded;
        break;
      case Flow::kLoopBegin: {
        std::int64_t begin = expr(a, inst, 0), end = expr(a, inst, 1);
        vars[inst.var] = begin;
        a.limits[static_cast<std::size_t>(inst.depth)] = end;
        a.pc = begin < end ? a.pc + 1 : inst.target;
        break;
      }
      case Flow::kLoopNext:
        ++vars[inst.var];
        a.pc = vars[inst.var] < a.limits[static_cast<std::size_t>(inst.depth)] ? inst.target
                                                                               : a.pc + 1;
        break;
      case Flow::kBranchZero:
        a.pc = expr(a, inst, 0) == 0 ? inst.target : a.pc + 1;
        break;
      case Flow::kJump:
        a.pc = inst.target;
        break;
      case Flow::kEnd:
        return end_tile(a) ? Outcome::kDone : Outcome::kYielded;
    }
  }
}

bool RankMachine::end_tile(AgentState& a) {
  if (recorder != nullptr && a.role != nullptr) {
    std::int64_t now = Recorder::now_ns();
    recorder->add(Span{.kind = SpanKind::kTile,
                       .rank = rank(),
                       .worker = a.worker,
                       .program = program_name,
                       .role = role_name(a),
                       .tile = a.tile,
                       .epoch = static_cast<std::int64_t>(epoch_),
                       .begin_ns = a.tile_begin_ns,
                       .end_ns = now});
    a.tile_begin_ns = now;
  }
  a.pc = 0;
  if (a.role == nullptr) return a.done = true;
  a.tile += a.role->role->resource.num_workers;
  a.vars[static_cast<std::size_t>(a.role->role->tile_var)] = a.tile;
  return a.done = a.tile >= a.num_tiles;
}

bool RankMachine::execute(AgentState& a, const Inst& inst) {
  switch (inst.code) {
    case OpCode::kLet:
      a.vars[static_cast<std::size_t>(inst.var)] = expr(a, inst, 0);
      return true;
    case OpCode::kNotify:
    case OpCode::kWait:
    case OpCode::kPipePut:
    case OpCode::kPipeFill:
    case OpCode::kPipeGet:
    case OpCode::kPipeRelease:
    case OpCode::kArrive:
    case OpCode::kBarrierSync:
    case OpCode::kLoadPacket:
      return execute_sync(a, inst);
    case OpCode::kLoad:
    case OpCode::kLoadRows:
    case OpCode::kDot:
    case OpCode::kDotAsync:
    case OpCode::kDotScaled:
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
    case OpCode::kCopy:
    case OpCode::kStorePacket:
      execute_memory(a, inst);
      return true;
    default:
      if (compute) {
        compute_value(program(), inst, a.regs, inst.num_exprs > 0 ? expr(a, inst, 0) : 0);
      }
      return true;
  }
}

std::int64_t RankMachine::expr(const AgentState& a, const Inst& inst, int i) {
  current_inst_ = &inst;
  return a.code->exprs[static_cast<std::size_t>(inst.expr + i)].eval(a.vars, this);
}

Register& RankMachine::result(AgentState& a, const Inst& inst) {
  return a.regs[static_cast<std::size_t>(inst.result)];
}

ClippedTile RankMachine::clip(const AgentState& a, const Inst& inst, const RegionCode& r,
                              std::int64_t rows, std::int64_t cols) {
  const std::vector<std::int64_t>& vars = a.vars;
  ClippedTile t{.tensor_idx = r.tensor, .rank = code_.rank, .rows = rows, .cols = cols};
  const TensorMem& mem = tensors[static_cast<std::size_t>(r.tensor)];
  t.tensor = &mem;
  t.row_dim = r.row_dim;
  t.col_dim = r.col_dim;
  if (r.rank.present()) {
    std::int64_t owner = r.rank.eval(vars);
    if (owner < 0 || owner >= program().world_size) {
      throw UserError(fmt::format("{}:{}: rank {} of {}", inst.op->loc.file, inst.op->loc.line,
                                  owner, program().world_size));
    }
    t.rank = static_cast<int>(owner);
  }
  t.r1 = rows;
  t.c1 = cols;
  t.col_stride = mem.stride[r.col_dim];
  for (int d = 0; d < mem.num_dims; ++d) {
    std::int64_t origin = r.origin[static_cast<std::size_t>(d)].eval(vars);
    std::int64_t limit = mem.shape[d];
    if (d == r.row_dim) {
      t.row_stride = mem.stride[d];
      if (r.row_end.present()) limit = std::min(limit, r.row_end.eval(vars));
      t.row_origin = origin;
      t.row_limit = limit;
      t.r0 = std::max<std::int64_t>(0, -origin);
      t.r1 = std::min(rows, limit - origin);
      origin += t.r0;
    } else if (d == r.col_dim) {
      if (r.col_end.present()) limit = std::min(limit, r.col_end.eval(vars));
      t.c0 = std::max<std::int64_t>(0, -origin);
      t.c1 = std::min(cols, limit - origin);
      origin += t.c0;
    } else if (origin < 0 || origin >= limit) {
      t.outside = true;
    }
    t.origin[d] = origin;
    t.element += origin * mem.stride[d];
  }
  t.r0 = std::min(t.r0, rows);
  t.c0 = std::min(t.c0, cols);
  t.r1 = t.outside ? t.r0 : std::max(t.r0, t.r1);
  t.c1 = std::max(t.c0, t.c1);
  if (t.empty()) return t;
  std::byte* base = mem.at[static_cast<std::size_t>(t.rank)];
  if (base != nullptr) {
    t.data = base + t.element * mem.elem_bytes;
  } else if (compute) {
    throw InternalError(fmt::format(
        "{}:{}: tensor '{}' is not addressable on rank {}", inst.op->loc.file, inst.op->loc.line,
        program().tensors[static_cast<std::size_t>(r.tensor)].name, t.rank));
  }
  return t;
}

void RankMachine::observe(const AgentState& a, const Inst& inst, TouchKind kind,
                          const ClippedTile& t) {
  if (observer == nullptr || t.empty()) return;
  observer->on_access(a, inst, kind, box_of(t));
}

Observer::Box box_of(const ClippedTile& t) {
  Observer::Box box{.tensor = t.tensor_idx, .rank = t.rank, .num_dims = t.tensor->num_dims};
  for (int d = 0; d < box.num_dims; ++d) {
    std::int64_t length = d == t.row_dim ? t.num_rows() : d == t.col_dim ? t.num_cols() : 1;
    box.lo[d] = t.origin[d];
    box.hi[d] = t.origin[d] + length;
  }
  return box;
}

// --- memory: a region is clipped to the tensor once; what lies outside reads as zero, is not
// written, and contributes nothing to a product ---

void RankMachine::execute_memory(AgentState& a, const Inst& inst) {
  switch (inst.code) {
    case OpCode::kLoad:
      return load(inst, a, writable(result(a, inst)));
    case OpCode::kLoadRows:
      return load_rows(inst, a, writable(result(a, inst)));
    case OpCode::kStore:
      return store(a, inst);
    case OpCode::kStoreRows:
      return store_rows(a, inst);
    case OpCode::kReduceStore:
      return reduce_store(a, inst);
    case OpCode::kCopy:
      return copy(a, inst);
    case OpCode::kStorePacket:
      return store_packet(a, inst);
    default:
      return dot(a, inst);
  }
}

void RankMachine::load(const Inst& inst, AgentState& a, Register& reg) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, TouchKind::kRead, t);
  if (!compute) return;
  if (t.rank == rank()) require_contract(t.tensor_idx, contracts_.check_tile(t.tensor_idx));
  bool partial = t.num_rows() < t.rows || t.num_cols() < t.cols;
  if (partial) zero_tile(tile_of(reg));
  if (!t.empty()) copy_tile(valid_part(reg, t), memory_tile(t));
}

void RankMachine::store(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, TouchKind::kWrite, t);
  if (!compute || t.empty()) return;
  const Register& reg = a.regs[static_cast<std::size_t>(inst.operands[0])];
  copy_tile(memory_tile(t), valid_part(reg, t));
}

// Row `i` of the tile, or an empty tile where the index or the region's limits mask it.
ClippedTile RankMachine::gathered_row(const Inst& inst, const ClippedTile& t, std::int32_t picked,
                                      std::int64_t i) const {
  ClippedTile row = t;
  row.rows = 1;
  row.r0 = 0;
  row.r1 = 0;
  if (picked < 0 || t.outside) return row;
  std::int64_t at = t.row_origin + picked;
  if (at >= t.tensor->shape[t.row_dim]) {
    throw UserError(fmt::format("{}:{}: tensor '{}' has {} rows, entry {} of the row indices is {}",
                                inst.op->loc.file, inst.op->loc.line,
                                program().tensors[static_cast<std::size_t>(t.tensor_idx)].name,
                                t.tensor->shape[t.row_dim], i, picked));
  }
  if (at < 0 || at >= t.row_limit) return row;
  row.r1 = 1;
  row.element += (at - t.origin[t.row_dim]) * t.row_stride;
  row.origin[t.row_dim] = at;
  std::byte* base = t.tensor->at[static_cast<std::size_t>(t.rank)];
  if (base != nullptr) row.data = base + row.element * t.tensor->elem_bytes;
  return row;
}

// Without arithmetic the indices are unknown, and the accesses they choose are not simulated.
void RankMachine::load_rows(const Inst& inst, AgentState& a, Register& reg) {
  if (!compute) return;
  ClippedTile t = clip(a, inst, inst.region);
  if (t.rank == rank()) require_contract(t.tensor_idx, contracts_.check_tile(t.tensor_idx));
  const auto* picked = a.regs[static_cast<std::size_t>(inst.operands[0])].as<std::int32_t>();
  TileRef whole = tile_of(reg);
  for (std::int64_t i = 0; i < t.rows; ++i) {
    ClippedTile row = gathered_row(inst, t, picked[i], i);
    observe(a, inst, TouchKind::kRead, row);
    if (row.num_cols() < row.cols || row.empty()) zero_tile(sub_tile(whole, i, 0, 1, whole.cols));
    if (!row.empty()) {
      copy_tile(sub_tile(whole, i, row.c0, 1, row.num_cols()), memory_tile(row));
    }
  }
}

void RankMachine::store_rows(AgentState& a, const Inst& inst) {
  if (!compute) return;
  ClippedTile t = clip(a, inst, inst.region);
  TileRef whole = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
  const auto* picked = a.regs[static_cast<std::size_t>(inst.operands[1])].as<std::int32_t>();
  for (std::int64_t i = 0; i < t.rows; ++i) {
    ClippedTile row = gathered_row(inst, t, picked[i], i);
    observe(a, inst, TouchKind::kWrite, row);
    if (!row.empty()) {
      copy_tile(memory_tile(row), sub_tile(whole, i, row.c0, 1, row.num_cols()));
    }
  }
}

void RankMachine::reduce_store(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, TouchKind::kReduce, t);
  if (!compute || t.empty()) return;
  TileRef value = valid_part(a.regs[static_cast<std::size_t>(inst.operands[0])], t);
  for (std::int64_t r = 0; r < t.num_rows(); ++r) {
    for (std::int64_t c = 0; c < t.num_cols(); ++c) {
      std::byte* to = t.data + (r * t.row_stride + c * t.col_stride) * t.tensor->elem_bytes;
      const std::byte* from = static_cast<std::byte*>(sub_tile(value, r, c, 1, 1).data);
      atomic_add(t.tensor->dtype, to, load_element(value.dtype, from));
    }
  }
}

void RankMachine::copy(AgentState& a, const Inst& inst) {
  ClippedTile from = clip(a, inst, inst.region), to = clip(a, inst, inst.region2);
  observe(a, inst, TouchKind::kRead, common_part(from, to));
  observe(a, inst, TouchKind::kWrite, to);
  if (!compute || to.empty()) return;
  std::int64_t begin_ns = recorder != nullptr ? Recorder::now_ns() : 0;
  // The part that both have, in tile coordinates; the rest of the destination reads masked source.
  std::int64_t r0 = std::max(from.r0, to.r0), r1 = std::min(from.r1, to.r1);
  std::int64_t c0 = std::max(from.c0, to.c0), c1 = std::min(from.c1, to.c1);
  bool none = r0 >= r1 || c0 >= c1;
  TileRef source = memory_tile(from), target = memory_tile(to);
  if (none || r0 > to.r0 || r1 < to.r1 || c0 > to.c0 || c1 < to.c1) zero_tile(target);
  if (!none) {
    copy_tile(sub_tile(target, r0 - to.r0, c0 - to.c0, r1 - r0, c1 - c0),
              sub_tile(source, r0 - from.r0, c0 - from.c0, r1 - r0, c1 - c0));
  }
  if (recorder == nullptr) return;
  recorder->add(Span{.kind = SpanKind::kCopy,
                     .rank = rank(),
                     .worker = a.worker,
                     .program = program_name,
                     .role = role_name(a),
                     .tile = a.tile,
                     .epoch = static_cast<std::int64_t>(epoch_),
                     .begin_ns = begin_ns,
                     .end_ns = Recorder::now_ns()});
}

bool RankMachine::pipe_put(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->takes(inst.symbol)) return park(a, Park::kPipeFull);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.put++ % pipe.slots.size()];
  a.shared->note_put(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  if (inst.op->operands.empty()) {
    load(inst, a, slot);
  } else {
    load_rows(inst, a, slot);
  }
  if (observer != nullptr) observer->on_worker_edge(a, true, &slot);
  return true;
}

bool RankMachine::pipe_fill(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->takes(inst.symbol)) return park(a, Park::kPipeFull);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.put++ % pipe.slots.size()];
  a.shared->note_put(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  if (compute) {
    TileRef value = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
    copy_tile(tile_of(slot), sub_tile(value, 0, expr(a, inst, 0), slot.rows, slot.cols));
  }
  if (observer != nullptr) observer->on_worker_edge(a, true, &slot);
  return true;
}

void RankMachine::dot(AgentState& a, const Inst& inst) {
  const DotCode& code = a.code->dots[static_cast<std::size_t>(inst.dot)];
  std::int64_t turns = 1;
  if (code.folded) {
    std::int64_t begin = expr(a, inst, 0);
    a.vars[static_cast<std::size_t>(inst.var)] = begin;
    turns = std::max<std::int64_t>(expr(a, inst, 1) - begin, 0);
  }
  auto factor = [&](const DotSource& source, bool k_is_rows) {
    if (source.reg >= 0) {
      TileRef tile = tile_of(a.regs[static_cast<std::size_t>(source.reg)]);
      return Factor{tile, 0, tile.rows, 0, tile.cols};
    }
    const RegionCode& region = a.code->regions[static_cast<std::size_t>(source.region)];
    bool k_along_rows = k_is_rows != source.transposed;
    ClippedTile t = clip(a, inst, region, region.rows * (k_along_rows ? turns : 1),
                         region.cols * (k_along_rows ? 1 : turns));
    observe(a, inst, TouchKind::kRead, t);
    Factor f{memory_tile(t), t.r0, t.r1, t.c0, t.c1};
    return source.transposed ? flipped(f) : f;
  };
  Factor left = factor(code.a, false), right = factor(code.b, true);
  if (!compute) return;
  if (!code.folded && inst.num_exprs > 0) {
    left.r1 = std::min(left.r1, std::max(expr(a, inst, 0), left.r0));
  }
  if (!code.folded && inst.num_exprs > 1) {
    right.c1 = std::min(right.c1, std::max(expr(a, inst, 1), right.c0));
  }
  multiply({.code = code, .left = left, .right = right}, a.regs, a.arena.get());
}

void RankMachine::store_packet(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  if (t.empty()) return;
  if (observer != nullptr) observer->on_packet(a, inst, true, box_of(t));
  TileRef value = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
  packets_.store({t, inst, tensor_name(t.tensor_idx)}, compute ? &value : nullptr, packet_tag());
  wake(t.rank);
}

bool RankMachine::load_packet(AgentState& a, const Inst& inst) {
  if (a.park == Park::kNone && sync_hook != nullptr) call_hook(a, true);
  ClippedTile t = clip(a, inst, inst.region);
  TileRef value = tile_of(writable(result(a, inst)));
  if (compute && (t.num_rows() < t.rows || t.num_cols() < t.cols)) zero_tile(value);
  if (t.empty()) return true;
  std::uint64_t* missing =
      packets_.load({t, inst, tensor_name(t.tensor_idx)}, compute ? &value : nullptr, packet_tag());
  if (missing != nullptr) {
    a.word = reinterpret_cast<std::atomic<std::uint64_t>*>(missing);
    a.wanted = packet_tag();
    return park(a, Park::kPacket);
  }
  a.park = Park::kNone;
  if (observer != nullptr) observer->on_packet(a, inst, false, box_of(t));
  return true;
}

// --- waiting and its opposite: a wait that fails leaves the agent parked at the same instruction
// with a condition that is cheap to look at again; the clock is read only then ---

bool RankMachine::execute_sync(AgentState& a, const Inst& inst) {
  switch (inst.code) {
    case OpCode::kNotify:
      notify(a, inst);
      return true;
    case OpCode::kWait:
      return wait(a, inst);
    case OpCode::kLoadPacket:
      return load_packet(a, inst);
    case OpCode::kPipePut:
      return pipe_put(a, inst);
    case OpCode::kPipeFill:
      return pipe_fill(a, inst);
    case OpCode::kPipeGet:
      return pipe_get(a, inst);
    case OpCode::kPipeRelease: {
      PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
      if (observer != nullptr) {
        observer->on_worker_edge(a, true, &pipe.slots[pipe.released % pipe.slots.size()]);
      }
      ++pipe.released;
      return true;
    }
    case OpCode::kArrive: {
      BarrierState& barrier = a.shared->barriers[static_cast<std::size_t>(inst.symbol)];
      if (observer != nullptr) observer->on_worker_edge(a, true, &barrier);
      ++barrier.arrivals;
      return true;
    }
    default:
      return barrier_sync(a, inst);
  }
}

bool RankMachine::park(AgentState& a, Park kind) {
  if (a.parked_ns == 0) a.parked_ns = Recorder::now_ns();
  a.park = kind;
  return false;
}

bool RankMachine::ready(const AgentState& a) const {
  switch (a.park) {
    case Park::kNone:
      return true;
    case Park::kSignal:
      return a.word->load(std::memory_order_relaxed) >= a.wanted;
    case Park::kPacket:
      return a.word->load(std::memory_order_relaxed) >> 32 == a.wanted;
    case Park::kPipeFull:
    case Park::kPipeEmpty: {
      const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
      return a.park == Park::kPipeFull ? a.shared->takes(inst.symbol)
                                       : a.shared->gives(inst.symbol);
    }
    case Park::kBarrier: {
      const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
      return a.shared->barriers[static_cast<std::size_t>(inst.symbol)].arrivals >= a.wanted;
    }
  }
  return true;
}

// The wait is over, or the instruction at pc is about to look again.
void RankMachine::unpark(AgentState& a, const Inst& inst) {
  if (recorder != nullptr && (a.park == Park::kSignal || a.park == Park::kPacket)) {
    bool signal = a.park == Park::kSignal;
    recorder->add(
        Span{.kind = SpanKind::kWait,
             .rank = rank(),
             .worker = a.worker,
             .program = program_name,
             .role = role_name(a),
             .detail = signal ? signal_names[static_cast<std::size_t>(inst.symbol)] : "packet",
             .tile = a.tile,
             .channel = signal ? a.channel : -1,
             .epoch = static_cast<std::int64_t>(epoch_),
             .begin_ns = a.parked_ns,
             .end_ns = Recorder::now_ns()});
  }
  a.parked_ns = 0;
}

void RankMachine::call_hook(const AgentState& a, bool is_wait) {
  (*sync_hook)({.rank = rank(),
                .role = a.role_idx,
                .worker = a.worker,
                .is_wait = is_wait,
                .epoch = epoch_});
}

bool RankMachine::wait(AgentState& a, const Inst& inst) {
  if (a.park == Park::kNone) {
    if (sync_hook != nullptr) call_hook(a, true);
    a.channel = expr(a, inst, 0);
    a.at_least = expr(a, inst, 1);
    const Signal& signal = program().signals[static_cast<std::size_t>(inst.symbol)];
    if (a.channel < 0 || a.channel >= signal.num_channels) {
      throw UserError(fmt::format("{}:{}: wait on '{}': channel {} of {}", inst.op->loc.file,
                                  inst.op->loc.line, signal.name, a.channel, signal.num_channels));
    }
    std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel;
    a.wanted = epoch_ * quota_[static_cast<std::size_t>(counter)] +
               static_cast<std::uint64_t>(std::max<std::int64_t>(a.at_least, 0));
    a.word = &counters[static_cast<std::size_t>(rank())][counter].value;
  }
  if (a.word->load(std::memory_order_acquire) < a.wanted) return park(a, Park::kSignal);
  a.park = Park::kNone;
  if (observer != nullptr) {
    observer->on_acquire(a, code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel);
  }
  return true;
}

void RankMachine::wake(std::int64_t to) const {
  if (waker != nullptr && to != rank()) waker->notify_changed(static_cast<int>(to));
}

void RankMachine::notify(AgentState& a, const Inst& inst) {
  std::int64_t channel = expr(a, inst, 0), to = expr(a, inst, 1), amount = expr(a, inst, 2);
  const Signal& signal = program().signals[static_cast<std::size_t>(inst.symbol)];
  if (channel < 0 || channel >= signal.num_channels || to < 0 || to >= program().world_size ||
      amount < 0) {
    throw UserError(fmt::format("{}:{}: notify of '{}': channel {} of {}, rank {} of {}, amount {}",
                                inst.op->loc.file, inst.op->loc.line, signal.name, channel,
                                signal.num_channels, to, program().world_size, amount));
  }
  std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + channel;
  if (recorder != nullptr) {
    recorder->add(NotifyMark{.from_rank = rank(),
                             .to_rank = static_cast<int>(to),
                             .worker = a.worker,
                             .program = program_name,
                             .role = role_name(a),
                             .signal = signal_names[static_cast<std::size_t>(inst.symbol)],
                             .channel = channel,
                             .epoch = static_cast<std::int64_t>(epoch_),
                             .time_ns = Recorder::now_ns()});
  }
  if (observer != nullptr) observer->on_notify(a, static_cast<int>(to), counter);
  counters[static_cast<std::size_t>(to)][counter].value.fetch_add(
      static_cast<std::uint64_t>(amount), std::memory_order_release);
  wake(to);
  if (sync_hook != nullptr) call_hook(a, false);
}

bool RankMachine::pipe_get(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->gives(inst.symbol)) return park(a, Park::kPipeEmpty);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.got++ % pipe.slots.size()];
  a.shared->note_get(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  a.regs[static_cast<std::size_t>(inst.result)].data = slot.data;
  return true;
}

bool RankMachine::barrier_sync(AgentState& a, const Inst& inst) {
  BarrierState& barrier = a.shared->barriers[static_cast<std::size_t>(inst.symbol)];
  if (a.park == Park::kNone) {
    auto parties = static_cast<std::uint64_t>(
        a.role->role->barriers[static_cast<std::size_t>(inst.symbol)].num_arrivals);
    a.wanted = (barrier.arrivals / parties + 1) * parties;
    if (observer != nullptr) observer->on_worker_edge(a, true, &barrier);
    ++barrier.arrivals;
  }
  if (barrier.arrivals < a.wanted) return park(a, Park::kBarrier);
  a.park = Park::kNone;
  if (observer != nullptr) observer->on_worker_edge(a, false, &barrier);
  return true;
}

FaultRecord RankMachine::describe_wait(const AgentState& a) const {
  const Inst& inst = a.code->insts[static_cast<std::size_t>(a.pc)];
  FaultRecord record{
      .program = program().name, .role = role_name(a), .rank = rank(), .tile = a.tile};
  switch (a.park) {
    case Park::kSignal: {
      std::int64_t counter = code_.signal_base[static_cast<std::size_t>(inst.symbol)] + a.channel;
      std::uint64_t base = epoch_ * quota_[static_cast<std::size_t>(counter)];
      record.signal = program().signals[static_cast<std::size_t>(inst.symbol)].name;
      record.channel = a.channel;
      record.expected = a.at_least;
      record.seen = static_cast<std::int64_t>(a.word->load(std::memory_order_relaxed) - base);
      if (inst.num_exprs > 2) {
        const ExprCode& from = a.code->exprs[static_cast<std::size_t>(inst.expr + 2)];
        if (from.present()) record.waited_for = static_cast<int>(from.eval(a.vars));
      }
      if (record.waited_for < 0) {
        record.waited_for = only_notifier(program(), rank(), inst.symbol, a.channel);
      }
      break;
    }
    case Park::kPacket: {
      const Region& region = *inst.op->region;
      record.signal =
          "packet of " + program().tensors[static_cast<std::size_t>(region.tensor)].name;
      record.expected = static_cast<std::int64_t>(a.wanted);
      record.seen = static_cast<std::int64_t>(a.word->load(std::memory_order_relaxed) >> 32);
      break;
    }
    case Park::kPipeFull:
    case Park::kPipeEmpty:
      record.signal = "pipe " + a.role->role->pipes[static_cast<std::size_t>(inst.symbol)].name;
      break;
    case Park::kBarrier:
      record.signal =
          "barrier " + a.role->role->barriers[static_cast<std::size_t>(inst.symbol)].name;
      break;
    case Park::kNone:
      break;
  }
  return record;
}

// --- tables inside `let` ---

std::int64_t RankMachine::read(int tensor_idx, std::span<const std::int64_t> index) {
  const TensorMem& mem = tensors[static_cast<std::size_t>(tensor_idx)];
  std::int64_t entry = 0;
  Observer::Box box{.tensor = tensor_idx, .rank = rank(), .num_dims = mem.num_dims};
  STRETTO_CHECK(static_cast<int>(index.size()) == mem.num_dims, "table index has the wrong rank");
  for (int d = 0; d < mem.num_dims; ++d) {
    std::int64_t i = index[static_cast<std::size_t>(d)];
    if (i < 0 || i >= mem.shape[d]) {
      throw UserError(fmt::format("{}:{}: table '{}': index {} of dimension {} is outside 0..{}",
                                  current_inst_->op->loc.file, current_inst_->op->loc.line,
                                  tensor_name(tensor_idx), i, d, mem.shape[d] - 1));
    }
    entry += i * mem.stride[d];
    box.lo[d] = i;
    box.hi[d] = i + 1;
  }
  if (observer != nullptr) observer->on_access(*current_, *current_inst_, TouchKind::kRead, box);
  std::int64_t value = contracts_.entry(tensor_idx, entry);
  require_contract(tensor_idx, contracts_.check(tensor_idx, entry));
  return value;
}

void RankMachine::require_contract(int tensor_idx, const std::optional<BrokenEntry>& broken) const {
  if (!broken) return;
  throw Fault({.program = program().name,
               .role = role_name(*current_),
               .rank = rank(),
               .tile = current_->tile,
               .reason = fmt::format("table '{}' breaks its contract: entry {} is {}, {}",
                                     tensor_name(tensor_idx), broken->entry,
                                     contracts_.entry(tensor_idx, broken->entry), broken->what)});
}

}  // namespace stretto
