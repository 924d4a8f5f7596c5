#include <algorithm>

#include "stretto/ir/limits.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/verifier_impl.h"

namespace stretto {
namespace {

bool is_packet_op(OpCode code) {
  return code == OpCode::kStorePacket || code == OpCode::kLoadPacket;
}
bool writes_region(OpCode code) {
  return code == OpCode::kStore || code == OpCode::kStoreRows || code == OpCode::kReduceStore ||
         code == OpCode::kStorePacket;
}
bool names_map(OpCode code) {
  return code == OpCode::kProducerTileNotify || code == OpCode::kConsumerTileWait;
}
bool names_pipe(OpCode code) { return code >= OpCode::kPipePut && code <= OpCode::kPipeRelease; }
bool notifies(OpCode code) {
  return code == OpCode::kNotify || code == OpCode::kProducerTileNotify;
}

// What a copy queue can do: move data, synchronise, branch.
bool fits_copy_engine(OpCode code) {
  switch (code) {
    case OpCode::kLet:
    case OpCode::kCopy:
    case OpCode::kFence:
    case OpCode::kNotify:
    case OpCode::kWait:
    case OpCode::kLoop:
    case OpCode::kWhen:
      return true;
    default:
      return names_map(code);
  }
}

}  // namespace

BodyChecker::BodyChecker(const BodyPlace& place)
    : place_(place),
      visible_(visible_vars(place.program, {VarKind::kRank, VarKind::kExtent, VarKind::kScalar})),
      defined_(place.agent.values.size()),
      assigned_(place.program.vars.size()),
      scalar_(visible_vars(place.program, {VarKind::kScalar})) {
  if (place.role != nullptr) visible_[static_cast<std::size_t>(place.role->tile_var)] = true;
}

void BodyChecker::check() { block(place_.agent.body, 0); }

void fail_at_op(const BodyPlace& place, const Op& op, const std::string& reason) {
  const Program& program = place.program;
  SourceLoc loc = op.loc;
  if (loc.file.empty() && place.role != nullptr) loc = place.role->loc;
  if (loc.file.empty()) loc = program.loc;
  std::string where =
      place.role != nullptr ? fmt::format("role '{}'", place.role->name) : "on_start or on_end";
  fail_at(program, loc,
          fmt::format("{}, in {}: {}", reason, where, print_op(program, place.role, op)));
}

// What a block defines ends with it.
void BodyChecker::block(const Block& ops, int depth) {
  std::vector<bool> visible = visible_, defined = defined_;
  for (const Op& o : ops) op(o, depth);
  visible_ = std::move(visible);
  defined_ = std::move(defined);
}

void BodyChecker::op(const Op& o, int depth) {
  op_ = &o;
  const OpInfo& info = op_info(o.code);
  counts(info);
  level(info);
  registers();
  exprs();
  symbols();
  regions();
  TypeChecker(place_, o).check();
  attributes();
  scalar_influence();
  if (o.result >= 0) defined_[static_cast<std::size_t>(o.result)] = true;
  control(depth);
}

void BodyChecker::counts(const OpInfo& info) {
  auto within = [&](std::size_t n, int lo, int hi, const char* what) {
    bool fits = n >= static_cast<std::size_t>(lo) && n <= static_cast<std::size_t>(hi);
    require(fits, "{} has {} {}, need {} to {}", info.name, n, what, lo, hi);
  };
  within(op_->operands.size(), info.min_operands, info.max_operands, "operands");
  within(op_->exprs.size(), info.min_exprs, info.max_exprs, "index expressions");
  within(op_->bodies.size(), info.num_bodies, info.num_bodies, "bodies");
  require(op_->region.has_value() == (info.num_regions >= 1) &&
              op_->region2.has_value() == (info.num_regions >= 2),
          "{} needs {} regions", info.name, info.num_regions);
  require((op_->result >= 0) == info.has_result, "{} {}", info.name,
          info.has_result ? "needs a result register" : "writes no register");
}

void BodyChecker::level(const OpInfo& info) {
  if (place_.program.level == Level::kTile) {
    require(info.tile_level, "{} exists at schedule level only", info.name);
  } else {
    require(info.schedule_level, "{} exists at tile level only", info.name);
  }
  bool copy_engine =
      place_.role != nullptr && place_.role->resource.kind == ResourceKind::kCopyEngine;
  require(!copy_engine || fits_copy_engine(info.code), "a copy engine cannot {}", info.name);
}

void BodyChecker::registers() {
  for (int reg : op_->operands) {
    require(is_index(reg, place_.agent.values), "register ${} does not exist", reg);
    require(defined_[static_cast<std::size_t>(reg)],
            "register ${} is read where it need not have been written", reg);
  }
  require(op_->result < 0 || is_index(op_->result, place_.agent.values),
          "register ${} does not exist", op_->result);
}

void BodyChecker::require_expr(const Expr& e, std::string_view what, bool tables) {
  std::string problem = expr_problem(place_.program, e, {visible_, tables});
  require(problem.empty(), "{}: {}", what, problem);
}

void BodyChecker::exprs() {
  for (const Expr& e : op_->exprs) {
    if (op_->code == OpCode::kSplat && float_scalar(place_.program, e) != nullptr) continue;
    require_expr(e, "index expression", op_->code == OpCode::kLet);
  }
  if (op_->code == OpCode::kAwait && op_->exprs[0].is_const()) {
    require(op_->exprs[0].const_value() >= 0, "await of a negative number");
  }
}

void BodyChecker::regions() {
  bool packet = is_packet_op(op_->code);
  if (op_->region) region(*op_->region, {writes_region(op_->code), packet});
  if (op_->region2) region(*op_->region2, {true, packet});
}

void BodyChecker::region(const Region& r, const Access& access) {
  require(is_index(r.tensor, place_.program.tensors), "tensor {} does not exist", r.tensor);
  const Tensor& t = tensor(r);
  require(!access.writes || t.kind != TensorKind::kInput, "input '{}' is read-only", t.name);
  require(t.packet || !access.packet, "'{}' is not a packet buffer", t.name);
  require(!t.packet || access.packet,
          "'{}' is a packet buffer, which packet operations alone touch", t.name);
  for (const Expr& e : r.origin) require_expr(e, "origin");
  if (r.row_end.has_value()) require_expr(r.row_end, "until_row");
  if (r.col_end.has_value()) require_expr(r.col_end, "until_col");
  region_shape(r, t);
  if (!r.rank.has_value()) return;
  require_expr(r.rank, "rank");
  require(t.space == Space::kSymmetric || r.rank.same(Expr::var(0)),
          "'{}' is local, another rank's must be symmetric", t.name);
  require(!r.rank.is_const() ||
              (r.rank.const_value() >= 0 && r.rank.const_value() < place_.program.world_size),
          "rank outside the world of {}", place_.program.world_size);
}

void BodyChecker::region_shape(const Region& r, const Tensor& t) {
  int num_dims = static_cast<int>(t.shape.size());
  require(r.origin.size() == t.shape.size(), "origin has {} entries, '{}' has {} dimensions",
          r.origin.size(), t.name, num_dims);
  require(r.row_dim >= -1 && r.row_dim < num_dims, "row dimension {} of '{}', which has {}",
          r.row_dim, t.name, num_dims);
  require(r.col_dim >= 0 && r.col_dim < num_dims, "column dimension {} of '{}', which has {}",
          r.col_dim, t.name, num_dims);
  require(r.row_dim != r.col_dim, "rows and columns both run along dimension {}", r.row_dim);
  require(r.rows >= 1 && r.cols >= 1 && r.rows <= kMaxTileElements && r.cols <= kMaxTileElements &&
              r.rows * r.cols <= kMaxTileElements,
          "tile of {} x {}, need 1 to {} elements", r.rows, r.cols, kMaxTileElements);
  require(r.row_dim >= 0 || r.rows == 1, "tile of {} rows without a row dimension", r.rows);
}

void BodyChecker::symbols() {
  const Program& program = place_.program;
  OpCode code = op_->code;
  if (code == OpCode::kNotify || code == OpCode::kWait) {
    require(is_index(op_->symbol, program.signals), "signal {} does not exist", op_->symbol);
    signal_args();
  } else if (names_map(code)) {
    require(is_index(op_->symbol, program.maps), "tile map {} does not exist", op_->symbol);
    require(is_index(op_->symbol2, program.signals), "signal {} does not exist", op_->symbol2);
    map_channels();
  } else if (names_pipe(code)) {
    require(place_.role != nullptr && is_index(op_->symbol, place_.role->pipes),
            "pipe {} does not exist", op_->symbol);
    pipe_end();
  } else if (code == OpCode::kArrive || code == OpCode::kBarrierSync) {
    require(place_.role != nullptr && is_index(op_->symbol, place_.role->barriers),
            "barrier {} does not exist", op_->symbol);
  }
}

void BodyChecker::signal_args() {
  const Signal& s = place_.program.signals[static_cast<std::size_t>(op_->symbol)];
  auto in_range = [&](std::size_t i, std::int64_t hi, const char* what) {
    if (i >= op_->exprs.size() || !op_->exprs[i].is_const()) return;
    std::int64_t value = op_->exprs[i].const_value();
    require(value >= 0 && value < hi, "{} {}, need 0 to {}", what, value, hi - 1);
  };
  bool is_notify = op_->code == OpCode::kNotify;
  in_range(0, s.num_channels, "channel");
  in_range(is_notify ? 1 : 2, place_.program.world_size, "rank");
  in_range(is_notify ? 2 : 1, std::int64_t{1} << 32, is_notify ? "amount" : "threshold");
}

void BodyChecker::map_channels() {
  const Program& program = place_.program;
  const TileMap& m = program.maps[static_cast<std::size_t>(op_->symbol)];
  const Signal& s = program.signals[static_cast<std::size_t>(op_->symbol2)];
  std::int64_t needed = m.table_driven ? m.num_tiles : m.channels_per_rank * program.world_size;
  require(s.num_channels >= needed, "signal '{}' has {} channels, tile map '{}' uses {}", s.name,
          s.num_channels, m.name, needed);
}

void BodyChecker::pipe_end() {
  const Pipe& p = place_.role->pipes[static_cast<std::size_t>(op_->symbol)];
  bool put = op_->code == OpCode::kPipePut || op_->code == OpCode::kPipeFill;
  require(place_.agent_idx == (put ? p.producer : p.consumer),
          "agent '{}' is not the {} of pipe '{}'", place_.agent.name, put ? "producer" : "consumer",
          p.name);
}

void BodyChecker::attributes() {
  const Op& o = *op_;
  bool scheduled = place_.program.level == Level::kSchedule;
  require(o.stage == 0 || (o.stage > 0 && scheduled && num_loops_ > 0),
          "pipeline stage {} outside a loop of schedule level", o.stage);
  if (o.multicast == 0) return;
  require(o.code == OpCode::kPipePut, "only pipe_put may multicast");
  int cluster = place_.role->resource.cluster_size;
  require(o.multicast >> cluster == 0, "multicast to CTAs {:#x} of a cluster of {}", o.multicast,
          cluster);
}

bool BodyChecker::depends_on_scalar(const Expr& e) const {
  const ExprNode& n = e.node();
  if (n.op == ExprOp::kVar) return scalar_[static_cast<std::size_t>(n.value)];
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return depends_on_scalar(arg); });
}

void BodyChecker::scalar_influence() {
  if (!notifies(op_->code)) return;
  bool influenced =
      under_scalar_ || std::any_of(op_->exprs.begin(), op_->exprs.end(),
                                   [&](const Expr& e) { return depends_on_scalar(e); });
  require(!influenced, "a scalar decides about a notify, so its number per launch would vary");
}

void BodyChecker::control(int depth) {
  const Op& o = *op_;
  if (o.code == OpCode::kLet) {
    require(is_index(o.var, place_.program.vars) &&
                place_.program.vars[static_cast<std::size_t>(o.var)].kind == VarKind::kLet,
            "let of variable {}, which is not of kind let", o.var);
    auto var = static_cast<std::size_t>(o.var);
    require(!assigned_[var], "variable '{}' has its let already", place_.program.vars[var].name);
    assigned_[var] = true;
    visible_[var] = true;
    scalar_[var] = depends_on_scalar(o.exprs[0]);
    return;
  }
  if (o.bodies.empty()) return;
  require(depth < kMaxNesting, "loops and whens nest more than {} deep", kMaxNesting);
  if (o.code == OpCode::kLoop) return loop(depth);
  bool under_scalar = under_scalar_;
  under_scalar_ = under_scalar || depends_on_scalar(o.exprs[0]);
  for (const Block& body : o.bodies) block(body, depth + 1);
  under_scalar_ = under_scalar;
}

void BodyChecker::loop(int depth) {
  const Op& o = *op_;
  require(is_index(o.var, place_.program.vars) &&
              place_.program.vars[static_cast<std::size_t>(o.var)].kind == VarKind::kLoop,
          "loop over variable {}, which is not of kind loop", o.var);
  auto var = static_cast<std::size_t>(o.var);
  require(!assigned_[var], "variable '{}' counts a loop already", place_.program.vars[var].name);
  assigned_[var] = true;
  bool under_scalar = under_scalar_;
  scalar_[var] = depends_on_scalar(o.exprs[0]) || depends_on_scalar(o.exprs[1]);
  under_scalar_ = under_scalar || scalar_[var];
  visible_[var] = true;
  ++num_loops_;
  block(o.bodies[0], depth + 1);
  --num_loops_;
  visible_[var] = false;
  under_scalar_ = under_scalar;
}

}  // namespace stretto
