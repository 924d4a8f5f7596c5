#include "stretto/lang/program_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "stretto/base/errors.h"
#include "stretto/ir/tile_map.h"
#include "stretto/ir/verifier.h"

namespace stretto {

SourceLoc to_source_loc(const Loc& loc) {
  std::filesystem::path path(loc.file);
  std::filesystem::path shown = path.filename();
  if (path.has_parent_path()) shown = path.parent_path().filename() / shown;
  return {shown.string(), loc.line};
}

Slice Slice::on(const Index& rank) const {
  Slice s = *this;
  s.region_.rank = rank;
  return s;
}
Slice Slice::until_row(const Index& end) const {
  Slice s = *this;
  s.region_.row_end = end;
  return s;
}
Slice Slice::until_col(const Index& end) const {
  Slice s = *this;
  s.region_.col_end = end;
  return s;
}
Slice Slice::rows_along(int tensor_dim) const {
  Slice s = *this;
  s.region_.row_dim = tensor_dim;
  return s;
}
Slice Slice::cols_along(int tensor_dim) const {
  Slice s = *this;
  s.region_.col_dim = tensor_dim;
  return s;
}

Slice TensorRef::tile(std::vector<Index> origin, std::int64_t rows, std::int64_t cols) const {
  Region region;
  region.tensor = idx_;
  region.rank = rank_;
  region.origin = std::move(origin);
  region.row_dim = num_dims() - 2;
  region.col_dim = num_dims() - 1;
  region.rows = rows;
  region.cols = cols;
  return Slice(std::move(region));
}

TensorRef TensorRef::on(const Index& rank) const {
  TensorRef t = *this;
  t.rank_ = rank;
  return t;
}

ProgramBuilder::ProgramBuilder(std::string name, int world_size, Loc loc) {
  program_.name = std::move(name);
  program_.world_size = world_size;
  program_.loc = last_loc_ = to_source_loc(loc);
  program_.vars.push_back({"rank", VarKind::kRank, 0});
  program_.on_start.name = "on_start";
  program_.on_end.name = "on_end";
}

void ProgramBuilder::fail(const std::string& what) const {
  throw UserError(
      fmt::format("{}:{}: program '{}': {}", last_loc_.file, last_loc_.line, program_.name, what));
}

// --- declarations ---

int ProgramBuilder::add_var(const std::string& name, VarKind kind, std::int64_t bound) {
  auto taken = [&](const std::string& candidate) { return program_.find_var(candidate) >= 0; };
  std::string unique = name;
  for (int i = 1; taken(unique); ++i) unique = fmt::format("{}_{}", name, i);
  program_.vars.push_back({unique, kind, bound});
  return static_cast<int>(program_.vars.size()) - 1;
}

Index ProgramBuilder::extent(const std::string& name, std::int64_t bound) {
  return Expr::var(add_var(name, VarKind::kExtent, bound));
}

Index ProgramBuilder::scalar(const std::string& name, std::int64_t bound) {
  return Expr::var(add_var(name, VarKind::kScalar, bound));
}

FloatScalar ProgramBuilder::float_scalar(const std::string& name) {
  FloatScalar scalar;
  scalar.var_ = add_var(name, VarKind::kScalar, kFloatScalarBound);
  program_.vars.back().is_float = true;
  return scalar;
}

TensorRef ProgramBuilder::add_tensor(Tensor tensor, const Loc& loc) {
  tensor.loc = last_loc_ = to_source_loc(loc);
  TensorRef ref;
  ref.idx_ = static_cast<int>(program_.tensors.size());
  ref.dtype_ = tensor.dtype;
  ref.shape_ = tensor.shape;
  program_.tensors.push_back(std::move(tensor));
  return ref;
}

TensorRef ProgramBuilder::input(const std::string& name, DType dtype, std::vector<Index> shape,
                                Space space, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .kind = TensorKind::kInput,
                     .space = space},
                    loc);
}
TensorRef ProgramBuilder::output(const std::string& name, DType dtype, std::vector<Index> shape,
                                 Space space, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .kind = TensorKind::kOutput,
                     .space = space},
                    loc);
}
TensorRef ProgramBuilder::output(const std::string& name, DType dtype, std::vector<Index> shape,
                                 const OutputOptions& options, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .kind = TensorKind::kOutput,
                     .space = options.space,
                     .given_on = options.given_on},
                    loc);
}
TensorRef ProgramBuilder::state(const std::string& name, DType dtype, std::vector<Index> shape,
                                Space space, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .kind = TensorKind::kState,
                     .space = space},
                    loc);
}
TensorRef ProgramBuilder::buffer(const std::string& name, DType dtype, std::vector<Index> shape,
                                 const BufferOptions& options, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = dtype,
                     .shape = std::move(shape),
                     .kind = TensorKind::kBuffer,
                     .space = options.space,
                     .num_slots = options.num_slots,
                     .packet = options.packet},
                    loc);
}
TensorRef ProgramBuilder::table(const std::string& name, std::vector<Index> shape,
                                const Contract& contract, Loc loc) {
  return add_tensor({.name = name,
                     .dtype = DType::kI32,
                     .shape = std::move(shape),
                     .kind = TensorKind::kInput,
                     .contract = contract},
                    loc);
}

TensorRef ProgramBuilder::made_table(const std::string& name, std::vector<Index> shape,
                                     const Contract& contract, const BufferOptions& options,
                                     Loc loc) {
  TensorRef ref = buffer(name, DType::kI32, std::move(shape), options, loc);
  program_.tensors.back().contract = contract;
  return ref;
}

SignalRef ProgramBuilder::signal(const std::string& name, Loc loc) {
  SignalRef ref = signal(name, program_.world_size, loc);
  program_.signals.back().per_source = true;
  return ref;
}

SignalRef ProgramBuilder::signal(const std::string& name, std::int64_t num_channels, Loc loc) {
  last_loc_ = to_source_loc(loc);
  SignalRef ref;
  ref.idx_ = static_cast<int>(program_.signals.size());
  ref.num_channels_ = num_channels;
  program_.signals.push_back({.name = name, .num_channels = num_channels, .loc = last_loc_});
  return ref;
}

TileMapRef ProgramBuilder::tile_map(const std::string& name, const TensorRef& tensor,
                                    const TileMapOptions& options, Loc loc) {
  last_loc_ = to_source_loc(loc);
  if (options.tile_rows < 1 || options.channels_per_rank < 1)
    fail("tile map: sizes must be positive");
  TileMap map{
      .name = name, .tensor = tensor.idx(), .tile_rows = options.tile_rows, .loc = last_loc_};
  map.rows_per_rank = max(ceil_div(tensor.dim(0), program_.world_size), 1);
  map.channels_per_rank = options.channels_per_rank;
  program_.maps.push_back(map);
  TileMapRef ref;
  ref.idx_ = static_cast<int>(program_.maps.size()) - 1;
  ref.channels_ = num_channels(program_, map);
  ref.space_.map_ = ref.idx_;
  ref.space_.world_ = program_.world_size;
  ref.space_.per_rank_ = tiles_per_rank(program_, map);
  ref.space_.count_ = num_tiles(program_, map);
  return ref;
}

TileMapRef ProgramBuilder::tile_map(const std::string& name, const TensorRef& tensor,
                                    const TableMapOptions& options, Loc loc) {
  last_loc_ = to_source_loc(loc);
  TileMap map{.name = name,
              .tensor = tensor.idx(),
              .table_driven = true,
              .num_tiles = options.num_tiles,
              .num_channels = options.num_channels,
              .low = options.low.idx(),
              .high = options.high.idx(),
              .rank = options.rank.idx(),
              .channel = options.channel.idx(),
              .count = options.count.idx(),
              .loc = last_loc_};
  map.rows_per_rank = 1;
  program_.maps.push_back(map);
  TileMapRef ref;
  ref.idx_ = static_cast<int>(program_.maps.size()) - 1;
  ref.channels_ = num_channels(program_, map);
  ref.space_.map_ = ref.idx_;
  ref.space_.world_ = program_.world_size;
  ref.space_.per_rank_ = 0;
  ref.space_.count_ = options.num_tiles;
  return ref;
}

// --- structure ---

TileSpace ProgramBuilder::grid(const TensorRef& tensor, std::int64_t bm, std::int64_t bn, Loc loc) {
  int d = tensor.num_dims();
  return grid(d >= 2 ? tensor.dim(d - 2) : Index(1), tensor.dim(d - 1), bm, bn, loc);
}

TileSpace ProgramBuilder::grid(const Index& rows, const Index& cols, std::int64_t bm,
                               std::int64_t bn, Loc loc) {
  last_loc_ = to_source_loc(loc);
  if (bm < 1 || bn < 1) fail("grid: tile sizes must be positive");
  TileSpace space;
  space.world_ = program_.world_size;
  space.num_m_ = ceil_div(rows, bm);
  space.num_n_ = ceil_div(cols, bn);
  space.bm_ = bm;
  space.bn_ = bn;
  space.count_ = space.num_m_ * space.num_n_;
  return space;
}

TileSpace ProgramBuilder::range(const Index& count) {
  TileSpace space;
  space.world_ = program_.world_size;
  space.count_ = count;
  return space;
}

void ProgramBuilder::record_block(Block& block, const std::function<void()>& body) {
  blocks_.push_back({&block, next_block_id_++});
  body();
  blocks_.pop_back();
}

void ProgramBuilder::record_agent(Agent& agent, const std::function<void()>& body) {
  if (agent_ != nullptr) fail("a role or on_start/on_end cannot be declared inside another");
  agent_ = &agent;
  record_block(agent.body, body);
  agent_ = nullptr;
}

int ProgramBuilder::role(const std::string& name, const Resource& resource, const TileSpace& tiles,
                         const std::function<void(const Tile&)>& body, Loc loc) {
  last_loc_ = to_source_loc(loc);
  Role role{.name = name, .resource = resource, .loc = last_loc_};
  role.tile_var = add_var(name + "_tile", VarKind::kTile, 0);
  role.num_tiles = tiles.count();
  role.agents.push_back({.name = "body"});
  record_agent(role.agents[0], [&] { body(make_tile(tiles, Expr::var(role.tile_var))); });
  program_.roles.push_back(std::move(role));
  return static_cast<int>(program_.roles.size()) - 1;
}

void ProgramBuilder::on_start(const std::function<void()>& body, Loc loc) {
  last_loc_ = to_source_loc(loc);
  record_agent(program_.on_start, body);
}
void ProgramBuilder::on_end(const std::function<void()>& body, Loc loc) {
  last_loc_ = to_source_loc(loc);
  record_agent(program_.on_end, body);
}

void ProgramBuilder::loop(const Index& begin, const Index& end,
                          const std::function<void(const Index&)>& body, Loc loc) {
  need_agent(loc);
  Op op{.code = OpCode::kLoop, .exprs = {begin, end}, .loc = last_loc_};
  op.var = add_var("i", VarKind::kLoop, 0);
  op.bodies.resize(1);
  record_block(op.bodies[0], [&] { body(Expr::var(op.var)); });
  emit(OpCode::kLoop, loc) = std::move(op);
}

void ProgramBuilder::when(const Index& condition, const std::function<void()>& then,
                          const std::function<void()>& otherwise, Loc loc) {
  need_agent(loc);
  Op op{.code = OpCode::kWhen, .exprs = {condition}, .loc = last_loc_};
  op.bodies.resize(2);
  record_block(op.bodies[0], then);
  if (otherwise) record_block(op.bodies[1], otherwise);
  emit(OpCode::kWhen, loc) = std::move(op);
}

Index ProgramBuilder::let(const std::string& name, const Index& value, Loc loc) {
  Op& op = emit(OpCode::kLet, loc);
  op.exprs = {value};
  op.var = add_var(name, VarKind::kLet, 0);
  return Expr::var(op.var);
}

Index ProgramBuilder::bind(const std::string& name, const Index& value) {
  if (value.is_const() || value.node().op == ExprOp::kVar) return value;
  Op op{.code = OpCode::kLet, .exprs = {value}, .loc = last_loc_};
  op.var = add_var(name, VarKind::kLet, 0);
  blocks_.back().block->push_back(op);
  return Expr::var(op.var);
}

Index ProgramBuilder::read(const TensorRef& table, std::vector<Index> index, Loc loc) {
  return let("entry", Expr::table(table.idx(), std::move(index)), loc);
}

// --- emission ---

namespace {

// A dot may write its accumulator, but not what it still multiplies.
bool multiplies(const Op& op, int reg) {
  bool dot = op.code == OpCode::kDot || op.code == OpCode::kDotScaled;
  return dot && (op.operands[1] == reg || op.operands[2] == reg);
}

}  // namespace

void ProgramBuilder::need_agent(const Loc& loc) {
  last_loc_ = to_source_loc(loc);
  if (agent_ == nullptr) fail("operations belong inside a role, on_start or on_end");
}

Op& ProgramBuilder::emit(OpCode code, const Loc& loc) {
  need_agent(loc);
  blocks_.back().block->push_back({.code = code, .loc = last_loc_});
  return blocks_.back().block->back();
}

int ProgramBuilder::operand(const Value& value, const char* what) const {
  if (!value.register_) fail(fmt::format("{}: the value was never assigned", what));
  if (value.register_->builder != this)
    fail(fmt::format("{}: the value belongs to another program", what));
  return value.register_->idx;
}

Value ProgramBuilder::emit_value(OpCode code, const ValueType& type,
                                 std::vector<const Value*> operands) {
  if (agent_ == nullptr) fail("operations belong inside a role, on_start or on_end");
  Op op{.code = code, .loc = last_loc_};
  for (const Value* v : operands) op.operands.push_back(operand(*v, "operand"));
  op.result = static_cast<int>(agent_->values.size());
  agent_->values.push_back(type);
  blocks_.back().block->push_back(std::move(op));
  Value value;
  value.register_ = std::make_shared<Value::Register>(
      Value::Register{this, static_cast<int>(agent_->values.size()) - 1, type});
  value.block_id_ = current_block_id();
  return value;
}

void ProgramBuilder::assign(Value& target, const Value& from, bool from_is_temporary) {
  if (!target.register_ || target.block_id_ == current_block_id()) {
    target.register_ = from.register_;
    target.block_id_ = current_block_id();
    return;
  }
  int to = operand(target, "assignment"), source = operand(from, "assignment");
  if (!(target.type() == from.type())) {
    fail(fmt::format("assignment in a loop changes a tile from {}[{},{}] to {}[{},{}]",
                     short_name(target.dtype()), target.rows(), target.cols(),
                     short_name(from.dtype()), from.rows(), from.cols()));
  }
  if (target.register_.use_count() > 1) {
    fail(
        "assignment in a loop to a tile that another variable shares: make that variable with "
        "copy()");
  }
  Block& block = *blocks_.back().block;
  bool fresh = from_is_temporary && from.register_.use_count() == 1 && !block.empty() &&
               block.back().result == source && !multiplies(block.back(), to);
  if (fresh) {
    block.back().result = to;
    if (source == static_cast<int>(agent_->values.size()) - 1) agent_->values.pop_back();
    return;
  }
  Op op{.code = OpCode::kCopyValue, .result = to, .operands = {source}, .loc = last_loc_};
  block.push_back(std::move(op));
}

Value ProgramBuilder::full(DType dtype, std::int64_t rows, std::int64_t cols, double value,
                           Loc loc) {
  last_loc_ = to_source_loc(loc);
  Value v = emit_value(OpCode::kFill, {dtype, rows, cols}, {});
  blocks_.back().block->back().value = value;
  return v;
}

Value ProgramBuilder::iota_rows(const Index& start, std::int64_t rows, Loc loc) {
  last_loc_ = to_source_loc(loc);
  Value v = emit_value(OpCode::kIota, {DType::kI32, rows, 1}, {});
  blocks_.back().block->back().exprs = {start};
  return v;
}

Value ProgramBuilder::iota_cols(const Index& start, std::int64_t cols, Loc loc) {
  last_loc_ = to_source_loc(loc);
  Value v = emit_value(OpCode::kIota, {DType::kI32, 1, cols}, {});
  blocks_.back().block->back().exprs = {start};
  blocks_.back().block->back().axis = 1;
  return v;
}

Value ProgramBuilder::splat(DType dtype, const Index& value, Loc loc) {
  last_loc_ = to_source_loc(loc);
  Value v = emit_value(OpCode::kSplat, {dtype, 1, 1}, {});
  blocks_.back().block->back().exprs = {value};
  return v;
}

Value ProgramBuilder::splat(const FloatScalar& scalar, Loc loc) {
  if (scalar.var_ < 0) fail("splat of a float scalar that float_scalar() has not made");
  return splat(DType::kF32, Expr::var(scalar.var_), loc);
}

Program ProgramBuilder::finish(Loc loc) {
  last_loc_ = to_source_loc(loc);
  if (finished_) fail("finish() was called twice");
  finished_ = true;
  verify(program_);
  return std::move(program_);
}

}  // namespace stretto
