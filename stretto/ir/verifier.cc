#include "stretto/ir/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>
#include <utility>

#include "stretto/base/printable.h"
#include "stretto/ir/limits.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/text_form.h"
#include "stretto/ir/tile_map.h"
#include "stretto/ir/verifier_impl.h"

namespace stretto {
namespace {

class ProgramChecker {
 public:
  explicit ProgramChecker(const Program& program) : program_(program), loc_(program.loc) {}

  void check() {
    require(is_identifier(program_.name), "a program needs an identifier as its name, got '{}'",
            printable(program_.name));
    require(program_.world_size >= 1 && program_.world_size <= kMaxWorldSize,
            "world size {}, need 1 to {}", program_.world_size, kMaxWorldSize);
    vars();
    unique_names(program_.tensors, "tensor");
    unique_names(program_.signals, "signal");
    unique_names(program_.maps, "tile map");
    unique_names(program_.roles, "role");
    for (const Tensor& t : program_.tensors) tensor(t);
    std::int64_t counters = 0;
    for (const Signal& s : program_.signals) {
      signal(s);
      counters += s.num_channels * program_.world_size;
      require(counters <= kMaxCounters,
              "{} counters up to signal '{}', need {} at most: the "
              "channels of all signals, times {} ranks",
              counters, s.name, kMaxCounters, program_.world_size);
    }
    for (const TileMap& m : program_.maps) map(m);
    for (const Agent* agent : {&program_.on_start, &program_.on_end}) {
      at(program_.loc);
      agent_header(*agent);
      require(agent->kind == AgentKind::kBody, "on_start and on_end are agents of kind body");
      BodyChecker({program_, nullptr, 0, *agent}).check();
    }
    for (const Role& r : program_.roles) role(r);
  }

 private:
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds) fail_at(program_, loc_, fmt::format(format, std::forward<Args>(args)...));
  }
  void at(const SourceLoc& loc) { loc_ = loc.file.empty() ? program_.loc : loc; }

  template <typename T>
  void unique_names(const std::vector<T>& items, const char* what) {
    std::unordered_set<std::string_view> seen;
    SourceLoc around = loc_;
    for (const T& item : items) {
      if constexpr (requires { item.loc; }) at(item.loc);
      require(is_identifier(item.name), "a {} needs an identifier as its name, got '{}'", what,
              printable(item.name));
      require(seen.insert(item.name).second, "{} '{}' is declared twice", what, item.name);
    }
    loc_ = around;
  }

  // The value at the extents' bounds of an expression over extents alone.
  std::int64_t size(const Expr& e, const std::string& what) const {
    std::vector<bool> extents = visible_vars(program_, {VarKind::kExtent});
    std::string problem = expr_problem(program_, e, {extents});
    require(problem.empty(), "{}: {} (need constants and extents)", what, problem);
    auto value = value_at_bounds(program_, e);
    require(value.has_value(), "{}: {} overflows", what, print_expr(program_, e));
    return *value;
  }

  void vars() {
    unique_names(program_.vars, "variable");
    require(!program_.vars.empty() && program_.vars[0].kind == VarKind::kRank,
            "variable 0 is not the rank");
    for (std::size_t i = 0; i < program_.vars.size(); ++i) {
      const Var& v = program_.vars[i];
      require(i == 0 || v.kind != VarKind::kRank, "variable '{}' is a second rank", v.name);
      bool argument = v.kind == VarKind::kExtent || v.kind == VarKind::kScalar;
      require(argument || v.bound == 0, "variable '{}' has a bound, only extents and scalars may",
              v.name);
      require(v.bound >= 0 && v.bound <= kMaxExtent, "variable '{}' has bound {}, need 0 to {}",
              v.name, v.bound, kMaxExtent);
      require(!v.is_float || (v.kind == VarKind::kScalar && v.bound == kFloatScalarBound),
              "variable '{}' is a float, only scalars without a bound may be", v.name);
    }
  }

  void tensor(const Tensor& t) {
    at(t.loc);
    require(!t.shape.empty() && t.shape.size() <= kMaxTensorDims,
            "tensor '{}' has {} dimensions, need 1 to {}", t.name, t.shape.size(), kMaxTensorDims);
    bool buffer = t.kind == TensorKind::kBuffer;
    require(t.num_slots >= 1, "tensor '{}' has {} slots", t.name, t.num_slots);
    require(buffer || t.num_slots == 1, "tensor '{}' has {} slots, only buffers may", t.name,
            t.num_slots);
    require(buffer || !t.packet, "tensor '{}' carries packets, only buffers may", t.name);
    auto bytes = static_cast<std::int64_t>(size_bytes(t.dtype)) * t.num_slots * (t.packet ? 2 : 1);
    for (const Expr& dim : t.shape) {
      std::int64_t n = size(dim, fmt::format("shape of tensor '{}'", t.name));
      require(n >= 0 && n <= kMaxExtent, "tensor '{}' has a dimension of {}", t.name, n);
      bool fits = !__builtin_mul_overflow(bytes, n, &bytes) && bytes <= kMaxTensorBytes;
      require(fits, "tensor '{}' takes more than {} bytes", t.name, kMaxTensorBytes);
    }
    contract(t);
    given_on(t);
  }

  void given_on(const Tensor& t) {
    if (!t.given_on.has_value()) return;
    require(t.kind == TensorKind::kOutput && t.space == Space::kLocal,
            "tensor '{}' is given on some ranks, only local outputs may be", t.name);
    std::vector<bool> rank = visible_vars(program_, {VarKind::kRank});
    std::string problem = expr_problem(program_, t.given_on, {rank});
    require(problem.empty(), "ranks of output '{}': {} (need constants and the rank)", t.name,
            problem);
    bool any = false;
    for (int r = 0; r < program_.world_size; ++r) {
      const std::int64_t vars[] = {r};
      any = any || eval(t.given_on, vars) != 0;
    }
    require(any, "output '{}' is given on no rank", t.name);
  }

  void contract(const Tensor& t) {
    const Contract& c = t.contract;
    if (c.kind == ContractKind::kNone) return;
    require(t.dtype == DType::kI32 || t.dtype == DType::kI64,
            "tensor '{}' has a contract but holds {}, need integers", t.name, short_name(t.dtype));
    require(!t.packet, "tensor '{}' has a contract but carries packets", t.name);
    require(t.kind != TensorKind::kBuffer || c.kind == ContractKind::kRange,
            "buffer '{}' has a contract of kind {}, must be range: entries are checked one by one, "
            "where they are read",
            t.name, name(c.kind));
    require(c.kind != ContractKind::kPartition || t.shape.size() == 1,
            "partition '{}' has {} dimensions, need 1", t.name, t.shape.size());
    std::vector<bool> visible =
        visible_vars(program_, {VarKind::kRank, VarKind::kExtent, VarKind::kScalar});
    for (const Expr& limit : {c.lo, c.hi}) {
      std::string problem = expr_problem(program_, limit, {visible});
      require(problem.empty(), "contract of tensor '{}': {}", t.name, problem);
    }
    bool none = c.lo.is_const() && c.hi.is_const() && c.lo.const_value() >= c.hi.const_value();
    require(!none, "contract of tensor '{}': no value is from {} to below {}", t.name,
            print_expr(program_, c.lo), print_expr(program_, c.hi));
  }

  void signal(const Signal& s) {
    at(s.loc);
    require(s.num_channels >= 1 && s.num_channels <= kMaxChannels,
            "signal '{}' has {} channels, need 1 to {}", s.name, s.num_channels, kMaxChannels);
    require(!s.per_source || s.num_channels == program_.world_size,
            "signal '{}' has {} channels, per source it needs one per rank: {}", s.name,
            s.num_channels, program_.world_size);
  }

  void map(const TileMap& m) {
    at(m.loc);
    require(is_index(m.tensor, program_.tensors), "tile map '{}' names tensor {}, of {}", m.name,
            m.tensor, program_.tensors.size());
    require(m.tile_rows >= 1 && m.tile_rows <= kMaxExtent, "tile map '{}' has tiles of {} rows",
            m.name, m.tile_rows);
    if (m.table_driven) return table_map(m);
    std::int64_t rows = size(m.rows_per_rank, fmt::format("tile map '{}': rows_per_rank", m.name));
    require(rows >= 1 && rows <= kMaxExtent, "tile map '{}' gives a rank {} rows", m.name, rows);
    require(m.channels_per_rank >= 1 && m.channels_per_rank <= kMaxChannels,
            "tile map '{}' has {} channels per rank", m.name, m.channels_per_rank);
  }

  void table_map(const TileMap& m) {
    require(m.num_tiles >= 1 && m.num_tiles <= kMaxTiles, "tile map '{}' has {} tiles", m.name,
            m.num_tiles);
    require(m.num_channels >= 1 && m.num_channels <= kMaxChannels, "tile map '{}' has {} channels",
            m.name, m.num_channels);
    for (auto [what, idx] :
         {std::pair{"low", m.low}, std::pair{"high", m.high}, std::pair{"rank", m.rank},
          std::pair{"channel", m.channel}, std::pair{"count", m.count}}) {
      require(is_index(idx, program_.tensors), "tile map '{}': {} names tensor {}, of {}", m.name,
              what, idx, program_.tensors.size());
      const Tensor& t = program_.tensors[static_cast<std::size_t>(idx)];
      std::int64_t entries = what == std::string_view("count") ? m.num_channels : m.num_tiles;
      entries += idx == m.low && rows_are_partition(program_, m) ? 1 : 0;
      require(t.dtype == DType::kI32 && t.contract.kind != ContractKind::kNone &&
                  t.shape.size() == 1 && value_at_bounds(program_, t.shape[0]) == entries,
              "tile map '{}': {} '{}' must be an i32 tensor of {} entries with a contract", m.name,
              what, t.name, entries);
    }
  }

  void value_type(const ValueType& type, const std::string& what) const {
    require(type.rows >= 1 && type.cols >= 1 && type.rows <= kMaxTileElements &&
                type.cols <= kMaxTileElements && type.rows * type.cols <= kMaxTileElements,
            "{} is {}, need 1 to {} elements", what, describe(type), kMaxTileElements);
  }

  void agent_header(const Agent& a) const {
    require(a.num_threads >= 0 && a.num_threads <= 1024, "agent '{}' has {} threads", a.name,
            a.num_threads);
    require(a.num_registers >= 0 && a.num_registers <= 255, "agent '{}' has {} registers a thread",
            a.name, a.num_registers);
    for (std::size_t i = 0; i < a.values.size(); ++i) {
      value_type(a.values[i], fmt::format("register ${} of agent '{}'", i, a.name));
    }
  }

  void role(const Role& r) {
    at(r.loc);
    resource(r);
    require(is_index(r.tile_var, program_.vars) &&
                program_.vars[static_cast<std::size_t>(r.tile_var)].kind == VarKind::kTile,
            "role '{}': variable {} is not a tile variable", r.name, r.tile_var);
    num_tiles(r);
    if (program_.level == Level::kTile) {
      require(r.agents.size() == 1 && r.agents[0].kind == AgentKind::kBody,
              "role '{}' must be one agent of kind body at tile level", r.name);
      require(r.pipes.empty() && r.barriers.empty(),
              "role '{}' has pipes or barriers, which exist at schedule level only", r.name);
    }
    require(!r.agents.empty(), "role '{}' has no agent", r.name);
    unique_names(r.agents, "agent");
    unique_names(r.pipes, "pipe");
    unique_names(r.barriers, "barrier");
    for (const Pipe& p : r.pipes) pipe(r, p);
    for (const Barrier& b : r.barriers) {
      require(b.num_arrivals >= 1, "barrier '{}' has {} arrivals", b.name, b.num_arrivals);
    }
    if (r.resource.tickets) tickets(r);
    for (std::size_t i = 0; i < r.agents.size(); ++i) {
      at(r.loc);
      agent_header(r.agents[i]);
      BodyChecker({program_, &r, static_cast<int>(i), r.agents[i]}).check();
    }
  }

  // Tiles of a role by ticket run in any order on any worker.
  void tickets(const Role& r) {
    std::set<int> read, written;
    std::string order;  // what would order them
    std::function<void(const Expr&)> tables = [&](const Expr& expr) {
      const ExprNode& n = expr.node();
      if (n.op == ExprOp::kTable) read.insert(static_cast<int>(n.value));
      for (const Expr& arg : n.args) tables(arg);
    };
    std::function<void(const Block&)> walk = [&](const Block& block) {
      for (const Op& op : block) {
        if (op.code == OpCode::kLet && !op.exprs.empty() && op.exprs[0].has_value()) {
          tables(op.exprs[0]);
        }
        const OpInfo& info = op_info(op.code);
        bool pipe = op.code == OpCode::kPipePut || op.code == OpCode::kPipeFill ||
                    op.code == OpCode::kPipeGet || op.code == OpCode::kPipeRelease;
        if (info.synchronises && !pipe) order = info.name;
        bool stores = op.code == OpCode::kStore || op.code == OpCode::kStoreRows ||
                      op.code == OpCode::kReduceStore;
        if (op.region) (stores ? written : read).insert(op.region->tensor);
        if (op.region2) written.insert(op.region2->tensor);
        for (const Block& body : op.bodies) walk(body);
      }
    };
    for (const Agent& a : r.agents) walk(a.body);
    require(order.empty(), "role '{}' deals tiles by ticket and has a '{}'", r.name, order);
    for (int t : written) {
      require(read.count(t) == 0 || !is_index(t, program_.tensors),
              "role '{}' deals tiles by ticket and reads '{}', which it writes", r.name,
              program_.tensors[static_cast<std::size_t>(t)].name);
    }
  }

  void resource(const Role& r) const {
    const Resource& res = r.resource;
    require(res.num_workers >= 1 && res.num_workers <= 65536, "role '{}' has {} workers", r.name,
            res.num_workers);
    require(res.cluster_size >= 1 && res.cluster_size <= 16, "role '{}' has clusters of {}", r.name,
            res.cluster_size);
    require(res.cluster_size == 1 || res.kind == ResourceKind::kSm,
            "role '{}' has clusters of {}, only SMs have clusters", r.name, res.cluster_size);
    require(res.num_stages == 0 || (res.num_stages >= 2 && res.num_stages <= kMaxStages),
            "role '{}' has {} stages, need 2 to {}, or 0 for one agent", r.name, res.num_stages,
            kMaxStages);
    require(!res.tickets || res.kind == ResourceKind::kSm,
            "role '{}' deals tiles by ticket, only SMs do", r.name);
    require(res.num_consumers >= 1 && res.num_consumers <= kMaxConsumers,
            "role '{}' has {} consumers, need 1 to {}", r.name, res.num_consumers, kMaxConsumers);
    require(res.num_consumers == 1 || res.num_stages > 0,
            "role '{}' has {} consumers, only pipelined roles have several", r.name,
            res.num_consumers);
    require(res.stagger == 0 || (res.stagger > 0 && res.stagger < res.num_stages),
            "role '{}' has a stagger of {} steps, need 0 to one less than its {} stages", r.name,
            res.stagger, res.num_stages);
    require(res.tile_slots >= 1 && res.tile_slots <= kMaxStages,
            "role '{}' has {} slots of what is loaded once a tile, need 1 to {}", r.name,
            res.tile_slots, kMaxStages);
    bool at_will = res.products == ProductOrder::kAhead || res.products == ProductOrder::kAwaited;
    require(res.products == ProductOrder::kAhead || res.num_stages > 0,
            "role '{}' has its products {}, only pipelined roles do", r.name, name(res.products));
    require(at_will || res.stagger == 0,
            "role '{}' has its products {} and a stagger, which is an order of its own", r.name,
            name(res.products));
    bool has_epilogue = res.num_stages > 0 && !res.tickets && res.num_consumers == 1;
    require(res.store_slots >= 0 && res.store_slots <= kMaxStages,
            "role '{}' has {} slots for stores, need 0 to {}", r.name, res.store_slots, kMaxStages);
    require(res.store_slots == 0 || has_epilogue,
            "role '{}' has {} slots for stores, only pipelined roles with one consumer and without "
            "tickets have them",
            r.name, res.store_slots);
    require(res.load_slots >= 0 && res.load_slots <= kMaxStages,
            "role '{}' has {} slots for loads, need 0 to {}", r.name, res.load_slots, kMaxStages);
    require(res.load_slots == 0 || res.num_stages > 0,
            "role '{}' has {} slots for loads, only pipelined roles have them", r.name,
            res.load_slots);
    require(res.num_stages == 0 || res.kind == ResourceKind::kSm,
            "role '{}' has {} stages, only SMs are pipelined", r.name, res.num_stages);
    if (res.beside >= 0) beside(r);
  }

  void beside(const Role& r) const {
    const Resource& res = r.resource;
    auto own = static_cast<std::size_t>(&r - program_.roles.data());
    auto other = static_cast<std::size_t>(res.beside);
    require(other < own, "role '{}' is beside role {}, which is not declared before it", r.name,
            res.beside);
    const Resource& host = program_.roles[other].resource;
    require(res.kind == ResourceKind::kSm && host.kind == ResourceKind::kSm && host.beside < 0,
            "role '{}' is beside '{}', need SMs and one with blocks of its own", r.name,
            program_.roles[other].name);
    require(res.num_workers == host.num_workers,
            "role '{}' has {} workers and '{}', beside which it is, {}", r.name, res.num_workers,
            program_.roles[other].name, host.num_workers);
    require(res.cluster_size == 1 && host.cluster_size == 1 && res.num_stages == 0 && !res.tickets,
            "role '{}' is beside '{}': it has neither stages nor tickets, and neither has clusters",
            r.name, program_.roles[other].name);
    auto same = [&](const Role& o) { return o.resource.beside == res.beside; };
    require(std::count_if(program_.roles.begin(), program_.roles.end(), same) == 1,
            "role '{}' is not the only one beside '{}'", r.name, program_.roles[other].name);
  }

  void num_tiles(const Role& r) const {
    std::vector<bool> visible = visible_vars(program_, {VarKind::kRank, VarKind::kExtent});
    std::string problem = expr_problem(program_, r.num_tiles, {visible});
    require(problem.empty(), "role '{}': number of tiles: {} (need constants, rank and extents)",
            r.name, problem);
    auto tiles = value_at_bounds(program_, r.num_tiles);
    require(tiles && *tiles >= 0 && *tiles <= kMaxTiles, "role '{}' has {} tiles, need 0 to {}",
            r.name, tiles ? fmt::format("{}", *tiles) : "too many", kMaxTiles);
  }

  void pipe(const Role& r, const Pipe& p) const {
    value_type(p.type, fmt::format("pipe '{}'", p.name));
    require(p.num_slots >= 1, "pipe '{}' has {} slots", p.name, p.num_slots);
    require(is_index(p.producer, r.agents) && is_index(p.consumer, r.agents),
            "pipe '{}' connects agents {} and {}, the role has {}", p.name, p.producer, p.consumer,
            r.agents.size());
    require(p.producer != p.consumer, "pipe '{}' connects agent '{}' to itself", p.name,
            r.agents[static_cast<std::size_t>(p.producer)].name);
    if (p.shares != -1) shared(r, p);
  }

  void shared(const Role& r, const Pipe& p) const {
    auto idx = static_cast<int>(&p - r.pipes.data());
    require(p.shares >= 0 && p.shares < idx,
            "pipe '{}' shares the slots of pipe {}, need one above", p.name, p.shares);
    const Pipe& home = r.pipes[static_cast<std::size_t>(p.shares)];
    require(home.shares == -1, "pipe '{}' shares the slots of '{}', which has none of its own",
            p.name, home.name);
    require(p.producer == home.producer && p.type == home.type && p.num_slots == home.num_slots &&
                p.swizzle == home.swizzle,
            "pipes '{}' and '{}' share slots, but differ in producer, type, slots or swizzle",
            home.name, p.name);
    for (const Pipe* pipe : {&home, &p}) {
      require(pipe->producer < pipe->consumer,
              "pipe '{}' shares slots, whose producer stands above their consumers", pipe->name);
    }
    for (int i = 0; i < idx; ++i) {
      const Pipe& other = r.pipes[static_cast<std::size_t>(i)];
      bool same = i == p.shares || other.shares == p.shares;
      require(!same || other.consumer != p.consumer,
              "pipes '{}' and '{}' share slots and have one consumer, need one each", other.name,
              p.name);
    }
  }

  const Program& program_;
  SourceLoc loc_;  // of what is under check
};

}  // namespace

void verify(const Program& program) { ProgramChecker(program).check(); }

}  // namespace stretto
