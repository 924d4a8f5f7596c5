// The interpreter's frame: construction, the instruction loop, and where a region lies in memory.
// What values are is in machine_values.cc, memory effects in machine_memory.cc, waiting in
// machine_sync.cc, table reads in machine_tables.cc.
#include "stretto/executor/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t register_bytes(const ValueType& type) {
  std::size_t element = size_bytes(kernels::register_dtype(type.dtype));
  return aligned(static_cast<std::size_t>(type.rows * type.cols) * element);
}

void allocate_pipes(WorkerState& worker, const Role& role) {
  std::size_t total = 0;
  for (const Pipe& pipe : role.pipes) {
    total += register_bytes(pipe.type) * static_cast<std::size_t>(pipe.num_slots);
  }
  worker.arena = allocate_aligned(total);
  std::byte* next = worker.arena.get();
  for (const Pipe& pipe : role.pipes) {
    PipeState state;
    for (int s = 0; s < pipe.num_slots; ++s) {
      state.slots.push_back({pipe.type.dtype, pipe.type.rows, pipe.type.cols, next, next});
      next += register_bytes(pipe.type);
    }
    if (pipe.shares >= 0) {
      PipeState& home = worker.pipes[static_cast<std::size_t>(pipe.shares)];
      if (home.ring < 0) {
        home.ring = static_cast<int>(worker.rings.size());
        worker.rings.push_back({.num_slots = static_cast<std::uint64_t>(pipe.num_slots)});
      }
      state.ring = home.ring;
    }
    worker.pipes.push_back(std::move(state));
  }
  worker.barriers.resize(role.barriers.size());
}

}  // namespace

void FreeDeleter::operator()(std::byte* p) const { std::free(p); }

AlignedBytes allocate_aligned(std::size_t bytes) {
  void* p = std::aligned_alloc(kAlignment, std::max(aligned(bytes), kAlignment));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBytes(static_cast<std::byte*>(p));
}

Register& writable(Register& reg) {
  if (reg.data != reg.own) {
    std::memcpy(reg.own, reg.data, register_bytes({reg.dtype, reg.rows, reg.cols}));
    reg.data = reg.own;
  }
  return reg;
}

RankMachine::RankMachine(ProgramCode code, const Quotas& quotas) : code_(std::move(code)) {
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
  contract_checked_.assign(p.tensors.size(), false);
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
  if (a.role != nullptr && !a.shared->arena) allocate_pipes(*a.shared, *a.role->role);
}

void RankMachine::begin_launch(const std::vector<std::int64_t>& extents, std::uint64_t epoch) {
  const Program& p = program();
  bool valid = extents.size() == code_.launch_vars.size();
  for (std::size_t i = 0; valid && i < extents.size(); ++i) {
    auto var = static_cast<std::size_t>(code_.launch_vars[i]);
    valid = extents[i] >= 0 && extents[i] <= p.vars[var].bound;
  }
  if (!valid) {
    initial_vars(p, rank(), extents);  // throws, naming what is wrong
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
  contract_checked_.assign(contract_checked_.size(), false);
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
      if (compute) execute_value(a, inst);
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

void RankMachine::observe(const AgentState& a, const Inst& inst, AccessKind kind,
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

}  // namespace stretto
