#include "stretto/passes/resolve_tile_primitives.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"
#include "stretto/ir/tile_map.h"

namespace stretto {
namespace {

class Resolver {
 public:
  explicit Resolver(Program& program) : program_(program) {}

  Block resolve(Block block) {
    Block out;
    for (Op& op : block) {
      for (Block& body : op.bodies) body = resolve(std::move(body));
      switch (op.code) {
        case OpCode::kProducerTileNotify:
          producer_notify(op, out);
          break;
        case OpCode::kConsumerTileWait:
          consumer_wait(op, out);
          break;
        default:
          out.push_back(std::move(op));
      }
    }
    return out;
  }

 private:
  const TileMap& map_of(const Op& op) const {
    return program_.maps[static_cast<std::size_t>(op.symbol)];
  }

  void need_channels(const Op& op, std::int64_t channels) const {
    const Signal& signal = program_.signals[static_cast<std::size_t>(op.symbol2)];
    if (signal.num_channels >= channels) return;
    throw UserError(fmt::format("{}:{}: {}: signal '{}' has {} channels, map '{}' needs {}",
                                op.loc.file, op.loc.line, op_info(op.code).name, signal.name,
                                signal.num_channels, map_of(op).name, channels));
  }

  Expr let(Block& out, const char* var_name, const Expr& value, const SourceLoc& loc) {
    if (value.is_const() || value.node().op == ExprOp::kVar) return value;
    Op op{.code = OpCode::kLet, .exprs = {value}, .loc = loc};
    op.var = add_var(var_name, VarKind::kLet);
    out.push_back(op);
    return Expr::var(op.var);
  }

  int add_var(const std::string& base, VarKind kind) {
    program_.vars.push_back({fmt::format("{}__{}", base, program_.vars.size()), kind, 0});
    return static_cast<int>(program_.vars.size()) - 1;
  }

  static Op notify(const Op& from, const Expr& channel, const Expr& rank) {
    return {.code = OpCode::kNotify,
            .exprs = {channel, rank, 1},
            .symbol = from.symbol2,
            .loc = from.loc};
  }

  static Op wait(const Op& from, const Expr& channel, const Expr& at_least, const Expr& rank) {
    Op op{.code = OpCode::kWait,
          .exprs = {channel, at_least},
          .symbol = from.symbol2,
          .loc = from.loc};
    if (rank.has_value()) op.exprs.push_back(rank);
    return op;
  }

  void producer_notify(const Op& op, Block& out) {
    const TileMap map = map_of(op);
    need_channels(op, num_channels(program_, map));
    Expr channel = let(out, "channel", tile_channel(program_, map, op.exprs[0]), op.loc);
    Expr self = Expr::var(0);
    if (op.mode == NotifyMode::kLocal) {
      out.push_back(notify(op, channel, self));
    } else if (op.mode == NotifyMode::kP2P && !map.table_driven) {
      Expr owner = let(out, "owner", tile_owner(program_, map, op.exprs[0]), op.loc);
      out.push_back(notify(op, channel, owner));
    } else {
      Op loop{.code = OpCode::kLoop, .exprs = {0, program_.world_size}, .loc = op.loc};
      loop.var = add_var("peer", VarKind::kLoop);
      loop.bodies.push_back(
          {notify(op, channel, (self + Expr::var(loop.var)) % program_.world_size)});
      out.push_back(std::move(loop));
    }
  }

  void consumer_wait(const Op& op, Block& out) {
    const TileMap map = map_of(op);
    need_channels(op, num_channels(program_, map));
    Op loop{.code = OpCode::kLoop, .loc = op.loc};
    Block body;
    if (!map.table_driven) {
      RowRange channels = channels_of_rows(program_, map, op.exprs[0], op.exprs[1]);
      loop.exprs = {channels.lo, channels.hi};
      loop.var = add_var("channel", VarKind::kLoop);
      Expr channel = Expr::var(loop.var);
      body.push_back(wait(op, channel, channel_count(program_, map, channel),
                          channel / map.channels_per_rank));
    } else {
      loop.exprs = {0, map.num_tiles};
      loop.var = add_var("tile", VarKind::kLoop);
      Expr tile = Expr::var(loop.var);
      RowRange rows = tile_rows(program_, map, tile);
      Expr lo = let(body, "low", rows.lo, op.loc);
      Expr hi = let(body, "high", rows.hi, op.loc);
      Op when{.code = OpCode::kWhen,
              .exprs = {lo < op.exprs[1] && op.exprs[0] < hi && lo < hi},
              .loc = op.loc};
      Block then;
      then.push_back(wait(op, tile, 1, Expr()));
      when.bodies = {std::move(then), Block{}};
      body.push_back(std::move(when));
    }
    loop.bodies.push_back(std::move(body));
    out.push_back(std::move(loop));
  }

  Program& program_;
};

}  // namespace

Program resolve_tile_primitives(Program program) {
  Resolver resolver(program);
  program.on_start.body = resolver.resolve(std::move(program.on_start.body));
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) agent.body = resolver.resolve(std::move(agent.body));
  }
  program.on_end.body = resolver.resolve(std::move(program.on_end.body));
  program.level = Level::kSchedule;
  return program;
}

}  // namespace stretto
