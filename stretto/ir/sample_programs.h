// Programs for the tests of the text form: one per level that was written down in full
// (testdata/*.txt hold their text), and random ones that verify.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/program.h"

namespace stretto::sample {

inline Op make_op(OpCode code, int line) {
  Op op;
  op.code = code;
  op.loc = {"sample.cc", line};
  return op;
}

inline Region box(int tensor, std::vector<Expr> origin, std::int64_t rows, std::int64_t cols) {
  Region r;
  r.tensor = tensor;
  r.row_dim = static_cast<int>(origin.size()) - 2;
  r.col_dim = r.row_dim + 1;
  r.origin = std::move(origin);
  r.rows = rows;
  r.cols = cols;
  return r;
}

// Gathers `a` by pulling and multiplies with `b`; two ranks.
inline Program tile_program() {
  Program p;
  p.name = "gather_gemm";
  p.world_size = 2;
  p.loc = {"sample.cc", 1};
  p.vars = {{"rank", VarKind::kRank},      {"m", VarKind::kExtent, 256}, {"t", VarKind::kTile},
            {"t_1", VarKind::kTile},       {"k", VarKind::kLoop},        {"owner", VarKind::kLet},
            {"scale", VarKind::kScalar, 9}};
  Expr rank = Expr::var(0), m = Expr::var(1), t = Expr::var(2), t1 = Expr::var(3), k = Expr::var(4),
       owner = Expr::var(5);
  p.tensors.resize(4);
  p.tensors[0] = {"a", DType::kBF16, {ceil_div(m, 2), 64}, TensorKind::kInput, Space::kSymmetric};
  p.tensors[1] = {"b", DType::kBF16, {96, 64}, TensorKind::kInput};
  p.tensors[2] = {"full", DType::kBF16, {m, 64}, TensorKind::kBuffer, Space::kLocal, 2};
  p.tensors[3] = {"c", DType::kF32, {m, 96}, TensorKind::kOutput};
  p.tensors[0].loc = {"sample.cc", 2};
  p.signals = {{"here", 8, false, {"sample.cc", 3}}, {"ready", 2, true, {"sample.cc", 4}}};
  TileMap map;
  map.name = "rows";
  map.tensor = 2;
  map.tile_rows = 32;
  map.rows_per_rank = ceil_div(m, 2);
  map.channels_per_rank = 4;
  p.maps = {map};

  Op notify = make_op(OpCode::kNotify, 5);
  notify.symbol = 1;
  notify.exprs = {rank, 1 - rank, 1};
  p.on_start.body = {notify};

  Role gather{"gather", Resource::copy_engine(), 2, 8, {{"main"}}, {}, {}, {"sample.cc", 6}};
  Op let = make_op(OpCode::kLet, 7), wait = make_op(OpCode::kWait, 8),
     copy = make_op(OpCode::kCopy, 9), done = make_op(OpCode::kProducerTileNotify, 10);
  let.var = 5;
  let.exprs = {t / 4};
  wait.symbol = 1;
  wait.exprs = {owner, 1, owner};
  copy.region = box(0, {t % 4 * 32, 0}, 32, 64);
  copy.region->rank = owner;
  copy.region2 = box(2, {t * 32, 0}, 32, 64);
  copy.region2->row_end = min(m, (owner + 1) * 128);
  done.symbol = 0;
  done.symbol2 = 0;
  done.exprs = {t};
  done.mode = NotifyMode::kLocal;
  gather.agents[0].body = {let, wait, copy, done};

  Role gemm{"gemm",           Resource::sms(4).pipelined(3), 3, ceil_div(m, 64), {{"main"}}, {}, {},
            {"sample.cc", 11}};
  gemm.agents[0].values = {{DType::kF32, 64, 96},
                           {DType::kBF16, 64, 16},
                           {DType::kBF16, 96, 16},
                           {DType::kBF16, 16, 96}};
  Op arrive = make_op(OpCode::kConsumerTileWait, 12), zero = make_op(OpCode::kFill, 13),
     loop = make_op(OpCode::kLoop, 14), load_a = make_op(OpCode::kLoad, 15),
     load_b = make_op(OpCode::kLoad, 16), flip = make_op(OpCode::kTranspose, 17),
     dot = make_op(OpCode::kDot, 18), store = make_op(OpCode::kStore, 19);
  arrive.symbol = 0;
  arrive.symbol2 = 0;
  arrive.exprs = {t1 * 64, t1 * 64 + 64};
  zero.result = 0;
  loop.var = 4;
  loop.exprs = {0, 4};
  load_a.result = 1;
  load_a.region = box(2, {t1 * 64, k * 16}, 64, 16);
  load_b.result = 2;
  load_b.region = box(1, {0, k * 16}, 96, 16);
  flip.result = 3;
  flip.operands = {2};
  dot.result = 0;
  dot.operands = {0, 1, 3};
  loop.bodies = {{load_a, load_b, flip, dot}};
  store.operands = {0};
  store.region = box(3, {t1 * 64, 0}, 64, 96);
  gemm.agents[0].body = {arrive, zero, loop, store};
  p.roles = {gather, gemm};
  return p;
}

// One role of a producer and a consumer joined by two pipes.
inline Program schedule_program() {
  Program p;
  p.name = "piped_gemm";
  p.level = Level::kSchedule;
  p.vars = {{"rank", VarKind::kRank}, {"t", VarKind::kTile}, {"k", VarKind::kLoop}};
  Expr t = Expr::var(1), k = Expr::var(2);
  p.tensors.resize(3);
  p.tensors[0] = {"a", DType::kF16, {256, 128}, TensorKind::kInput};
  p.tensors[1] = {"b", DType::kF16, {128, 64}, TensorKind::kInput};
  p.tensors[2] = {"c", DType::kF32, {256, 64}, TensorKind::kOutput};
  Role r{"gemm", {ResourceKind::kSm, 4, 2}, 1, 4, {}, {}, {}, {"sample \"2\".cc", 1}};
  r.agents = {{"load", AgentKind::kProducer, 128, 40}, {"math", AgentKind::kConsumer, 128, 232}};
  r.agents[1].values = {
      {DType::kF32, 64, 64}, {DType::kF16, 64, 32}, {DType::kF16, 32, 64}, {DType::kF32, 1, 1}};
  r.pipes = {{"pipe_a", {DType::kF16, 64, 32}, 4, Swizzle::k64B, 0, 1},
             {"pipe_b", {DType::kF16, 32, 64}, 4, Swizzle::k128B, 0, 1}};
  r.barriers = {{"all", 2}};
  Op loop = make_op(OpCode::kLoop, 2), put_a = make_op(OpCode::kPipePut, 3),
     put_b = make_op(OpCode::kPipePut, 4), sync = make_op(OpCode::kBarrierSync, 5);
  loop.var = 2;
  loop.exprs = {0, 4};
  put_a.symbol = 0;
  put_a.region = box(0, {t * 64, k * 32}, 64, 32);
  put_b.symbol = 1;
  put_b.region = box(1, {k * 32, 0}, 32, 64);
  put_b.multicast = 3;
  put_b.stage = 1;
  sync.symbol = 0;
  loop.bodies = {{put_a, put_b}};
  r.agents[0].body = {loop, sync};

  Op zero = make_op(OpCode::kFill, 6), bias = make_op(OpCode::kFill, 7),
     get_a = make_op(OpCode::kPipeGet, 8), get_b = make_op(OpCode::kPipeGet, 9),
     dot = make_op(OpCode::kDotAsync, 10), await = make_op(OpCode::kAwait, 11),
     free_a = make_op(OpCode::kPipeRelease, 12), free_b = make_op(OpCode::kPipeRelease, 13),
     add = make_op(OpCode::kBinary, 14), when = make_op(OpCode::kWhen, 15),
     store = make_op(OpCode::kStore, 16), fence = make_op(OpCode::kFence, 17);
  zero.result = 0;
  bias.result = 3;
  bias.value = 0.1;
  get_a.result = 1;
  get_a.symbol = 0;
  get_b.result = 2;
  get_b.symbol = 1;
  dot.result = 0;
  dot.operands = {0, 1, 2};
  await.exprs = {0};
  free_a.symbol = 0;
  free_b.symbol = 1;
  loop.bodies = {{get_a, get_b, dot, await, free_a, free_b}};
  add.result = 0;
  add.operands = {0, 3};
  store.operands = {0};
  store.region = box(2, {t * 64, 0}, 64, 64);
  when.exprs = {t < 3 || t == 3};
  when.bodies = {{store}, {fence}};
  r.agents[1].body = {zero, bias, loop, sync, add, when};
  p.roles = {r};
  return p;
}

// Random programs that verify, of either level: declarations of every kind, nested control, and
// operations over registers of random types. Small, and without meaning.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : rng_(seed) {}

  Program make() {
    program_.name = "random." + std::to_string(below(1000));
    program_.world_size = static_cast<int>(1 + below(8));
    program_.level = flip() ? Level::kTile : Level::kSchedule;
    program_.loc = loc();
    program_.vars.push_back({"rank", VarKind::kRank});
    for (std::int64_t i = below(3); i > 0; --i) add_var(VarKind::kExtent, 1 + below(500));
    for (std::int64_t i = below(2); i > 0; --i) add_var(VarKind::kScalar, below(500));
    for (std::int64_t i = below(2); i > 0; --i) {
      add_var(VarKind::kScalar, kFloatScalarBound);
      program_.vars.back().is_float = true;
    }
    num_global_ = program_.vars.size();
    for (std::int64_t i = 2 + below(4); i > 0; --i) tensor();
    for (std::int64_t i = 1 + below(2); i > 0; --i) {
      program_.signals.push_back({fresh("s"), program_.world_size + below(4), false, loc()});
    }
    if (flip()) map();
    visible_ = globals();
    if (flip()) program_.on_start.body = {notify()};
    for (std::int64_t i = 1 + below(2); i > 0; --i) role();
    return std::move(program_);
  }

 private:
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(n));
  }
  bool flip() { return below(2) == 0; }
  template <typename T>
  const T& pick(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(below(static_cast<std::int64_t>(items.size())))];
  }
  std::string fresh(const char* stem) { return stem + std::to_string(next_name_++); }
  SourceLoc loc() {
    if (flip()) return {};
    return {flip() ? "x.cc" : "odd \\ \"name\"\n\t.cc", static_cast<int>(below(99))};
  }
  int add_var(VarKind kind, std::int64_t bound = 0) {
    program_.vars.push_back({fresh("v"), kind, bound});
    return static_cast<int>(program_.vars.size()) - 1;
  }
  std::vector<int> globals() const {
    std::vector<int> vars;
    for (std::size_t i = 0; i < num_global_; ++i) {
      if (program_.vars[i].kind != VarKind::kScalar) vars.push_back(static_cast<int>(i));
    }
    return vars;
  }

  Expr expr(int depth = 3) {
    std::int64_t choice = depth == 0 ? below(2) : below(14);
    if (choice == 0) return below(64) - 8;
    if (choice == 1) return Expr::var(pick(visible_));
    Expr a = expr(depth - 1);
    if (choice == 2) return !a;
    if (choice == 3) return a / (1 + below(9));
    if (choice == 4) return a % (1 + below(9));
    Expr b = expr(depth - 1);
    if (choice == 5) return select(a, b, expr(depth - 1));
    static const std::vector<ExprOp> kOps = {ExprOp::kAdd, ExprOp::kSub, ExprOp::kMul, ExprOp::kMin,
                                             ExprOp::kMax, ExprOp::kLt,  ExprOp::kLe,  ExprOp::kEq,
                                             ExprOp::kAnd, ExprOp::kOr};
    return Expr::make(pick(kOps), {a, b});
  }

  DType dtype() { return static_cast<DType>(below(9)); }

  void tensor() {
    Tensor t;
    t.name = fresh("x");
    t.dtype = dtype();
    for (std::int64_t i = 1 + below(3); i > 0; --i) {
      bool has_extent = num_global_ > 1 && program_.vars[1].kind == VarKind::kExtent;
      t.shape.push_back(has_extent && flip() ? Expr::var(1) + below(3) : Expr(1 + below(64)));
    }
    t.kind = static_cast<TensorKind>(below(4));
    t.space = flip() ? Space::kLocal : Space::kSymmetric;
    if (t.kind == TensorKind::kBuffer) {
      t.num_slots = static_cast<int>(1 + below(3));
      t.packet = flip();
    }
    if (t.dtype == DType::kI32 && !t.packet) {
      std::int64_t kinds = t.kind == TensorKind::kBuffer ? 1 : t.shape.size() == 1 ? 4 : 3;
      t.contract = {static_cast<ContractKind>(1 + below(kinds)), 0, 1 + below(9)};
    }
    t.loc = loc();
    program_.tensors.push_back(std::move(t));
  }

  void map() {
    TileMap m;
    m.name = fresh("m");
    m.tensor = 0;
    m.tile_rows = 1 + below(9);
    m.rows_per_rank = 1 + below(50);
    m.channels_per_rank = 1;
    m.loc = loc();
    program_.maps.push_back(std::move(m));
  }

  void role() {
    Role r;
    r.name = fresh("r");
    r.resource = flip() ? Resource::sms(3) : Resource::host(2);
    if (r.resource.kind == ResourceKind::kSm && flip()) {
      r.resource = r.resource.pipelined(static_cast<int>(2 + below(4)));
    }
    r.loc = loc();
    visible_ = globals();
    r.num_tiles = max(0, min(expr(2), 1000));
    r.tile_var = add_var(VarKind::kTile);
    bool schedule = program_.level == Level::kSchedule;
    for (std::int64_t i = schedule ? 2 : 1; i > 0; --i) {
      r.agents.push_back({fresh("agent"), AgentKind::kBody});
    }
    if (schedule) {
      r.pipes.push_back({fresh("p"),
                         {dtype(), 1 + below(8), 1 + below(8)},
                         static_cast<int>(1 + below(3)),
                         static_cast<Swizzle>(below(4)),
                         0,
                         1});
      r.barriers.push_back({fresh("b"), 2});
    }
    for (std::size_t i = 0; i < r.agents.size(); ++i) {
      agent_ = &r.agents[i];
      role_ = schedule && i == 1 ? &r : nullptr;  // the consumer of the pipe
      visible_ = globals();
      visible_.push_back(r.tile_var);
      defined_.clear();
      agent_->body = block(3);
    }
    program_.roles.push_back(std::move(r));
  }

  Block block(int depth) {
    std::vector<int> visible = visible_, defined = defined_;
    Block ops;
    for (std::int64_t i = below(6); i > 0; --i) ops.push_back(op(depth));
    visible_ = visible;
    defined_ = defined;
    return ops;
  }

  Op start(OpCode code) {
    Op op;
    op.code = code;
    op.loc = loc();
    return op;
  }
  int value(const ValueType& type) {
    agent_->values.push_back(type);
    return static_cast<int>(agent_->values.size()) - 1;
  }
  const ValueType& type(int reg) const { return agent_->values[static_cast<std::size_t>(reg)]; }

  Op notify() {
    Op op = start(OpCode::kNotify);
    op.symbol = 0;
    op.exprs = {below(program_.world_size), below(program_.world_size), expr(1)};
    if (op.exprs[2].is_const()) op.exprs[2] = 1;
    return op;
  }

  Op op(int depth) {
    switch (below(depth > 0 ? 9 : 7)) {
      case 0: {
        Op let = start(OpCode::kLet);
        let.exprs = {expr()};
        let.var = add_var(VarKind::kLet);
        visible_.push_back(let.var);
        return let;
      }
      case 1:
        return notify();
      case 2: {
        Op wait = start(OpCode::kWait);
        wait.symbol = 0;
        wait.exprs = {below(program_.world_size), below(9)};
        if (flip()) wait.exprs.push_back(Expr::var(0));
        return wait;
      }
      case 3:
        return define(load());
      case 4:
        return defined_.empty() ? define(fill()) : define(unary());
      case 5:
        if (role_ == nullptr) return define(fill());
        return define(pipe_get());
      case 6:
        return define(fill());
      case 7: {
        Op loop = start(OpCode::kLoop);
        loop.exprs = {expr(), expr()};
        loop.var = add_var(VarKind::kLoop);
        visible_.push_back(loop.var);
        loop.bodies = {block(depth - 1)};
        visible_.pop_back();
        return loop;
      }
      default: {
        Op when = start(OpCode::kWhen);
        when.exprs = {expr()};
        when.bodies.push_back(block(depth - 1));
        when.bodies.push_back(block(depth - 1));
        return when;
      }
    }
  }
  Op define(Op op) {
    defined_.push_back(op.result);
    return op;
  }

  Op fill() {
    Op op = start(OpCode::kFill);
    op.value = std::ldexp(static_cast<double>(below(1 << 30)) - (1 << 29),
                          static_cast<int>(below(200)) - 100);
    op.result = value({dtype(), 1 + below(8), 1 + below(8)});
    return op;
  }

  Op unary() {
    int reg = pick(defined_);
    ValueType t = type(reg);
    if (is_float(t.dtype) && flip()) {
      Op op = start(OpCode::kUnary);
      op.unary = static_cast<UnaryOp>(below(14));
      op.operands = {reg};
      op.result = value(t);
      return op;
    }
    if (t.dtype == DType::kF32 && flip()) {
      Op op = start(OpCode::kReduce);
      op.reduce = static_cast<ReduceOp>(below(3));
      op.axis = 1;
      op.operands = {reg};
      op.result = value({t.dtype, t.rows, 1});
      return op;
    }
    Op op = start(OpCode::kBinary);
    op.binary = static_cast<BinaryOp>(6 + below(6));
    op.operands = {reg, reg};
    op.result = value({DType::kBool, t.rows, t.cols});
    return op;
  }

  Op load() {
    auto idx = static_cast<int>(below(static_cast<std::int64_t>(program_.tensors.size())));
    const Tensor& t = program_.tensors[static_cast<std::size_t>(idx)];
    Op op = start(t.packet ? OpCode::kLoadPacket : OpCode::kLoad);
    Region r;
    r.tensor = idx;
    for (std::size_t i = 0; i < t.shape.size(); ++i) r.origin.push_back(expr());
    auto dims = static_cast<std::int64_t>(t.shape.size());
    r.col_dim = static_cast<int>(below(dims));
    r.row_dim = static_cast<int>(below(dims + 1)) - 1;
    if (r.row_dim == r.col_dim) r.row_dim = -1;
    r.rows = r.row_dim < 0 ? 1 : 1 + below(8);
    r.cols = 1 + below(8);
    if (t.space == Space::kSymmetric && flip()) r.rank = Expr::var(0) % program_.world_size;
    if (flip()) r.row_end = expr();
    if (flip()) r.col_end = expr();
    op.region = r;
    op.result = value({t.dtype, r.rows, r.cols});
    return op;
  }

  Op pipe_get() {
    Op op = start(OpCode::kPipeGet);
    op.symbol = 0;
    op.result = value(role_->pipes[0].type);
    return op;
  }

  std::mt19937_64 rng_;
  Program program_;
  std::size_t num_global_ = 0;
  int next_name_ = 0;
  Agent* agent_ = nullptr;
  const Role* role_ = nullptr;
  std::vector<int> visible_, defined_;
};

using stretto::test_seed;

}  // namespace stretto::sample
