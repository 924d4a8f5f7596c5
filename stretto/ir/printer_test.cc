#include "stretto/ir/printer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "stretto/ir/parser.h"
#include "stretto/ir/sample_programs.h"
#include "stretto/ir/verifier.h"

namespace stretto::printer_test {
namespace {

std::string golden(const std::string& file) {
  std::ifstream in("stretto/ir/testdata/" + file);
  EXPECT_TRUE(in.good()) << file;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A changed text would invalidate every stage dump that users keep.
TEST(Printer, TileLevelGolden) { EXPECT_EQ(print(sample::tile_program()), golden("tile.txt")); }
TEST(Printer, ScheduleLevelGolden) {
  EXPECT_EQ(print(sample::schedule_program()), golden("schedule.txt"));
}

TEST(Printer, SamplesVerify) {
  EXPECT_NO_THROW(verify(sample::tile_program()));
  EXPECT_NO_THROW(verify(sample::schedule_program()));
}

using Change = std::function<void(Program&)>;
struct NamedChange {
  const char* name;
  Change change;
};

// A field missing in the text would silently vanish when a dump is read back.
void expect_each_shows(const Program& original, const std::vector<NamedChange>& changes) {
  std::string before = print(original);
  for (const NamedChange& c : changes) {
    Program changed = original;
    c.change(changed);
    std::string text = print(changed);
    EXPECT_NE(text, before) << c.name;
    EXPECT_FALSE(equal(changed, original)) << c.name;
    EXPECT_EQ(print(parse(text, "text")), text) << c.name;
  }
}

TEST(Printer, EveryDeclarationFieldShows) {
  auto rename = [](std::string& s) { s = "other"; };
  expect_each_shows(
      sample::tile_program(),
      {
          {"name", [&](Program& p) { rename(p.name); }},
          {"world", [](Program& p) { p.world_size = 3; }},
          {"level", [](Program& p) { p.level = Level::kSchedule; }},
          {"loc.file", [](Program& p) { p.loc.file = "\x01 \"\\"; }},
          {"loc.line", [](Program& p) { p.loc.line = 77; }},
          {"var.name", [&](Program& p) { rename(p.vars[1].name); }},
          {"var.kind", [](Program& p) { p.vars[1].kind = VarKind::kScalar; }},
          {"var.bound", [](Program& p) { p.vars[1].bound = 7; }},
          {"var.is_float", [](Program& p) { p.vars[6].is_float = true; }},
          {"tensor.name", [&](Program& p) { rename(p.tensors[0].name); }},
          {"tensor.dtype", [](Program& p) { p.tensors[0].dtype = DType::kF8E4M3; }},
          {"tensor.shape", [](Program& p) { p.tensors[0].shape[1] = 65; }},
          {"tensor.kind", [](Program& p) { p.tensors[0].kind = TensorKind::kState; }},
          {"tensor.space", [](Program& p) { p.tensors[0].space = Space::kLocal; }},
          {"tensor.slots", [](Program& p) { p.tensors[2].num_slots = 3; }},
          {"tensor.packet", [](Program& p) { p.tensors[2].packet = true; }},
          {"contract",
           [](Program& p) {
             p.tensors[1].contract = {ContractKind::kRange, 0, 9};
           }},
          {"contract.lo",
           [](Program& p) {
             p.tensors[1].contract = {ContractKind::kAscending, 1, 9};
           }},
          {"tensor.given_on", [](Program& p) { p.tensors[3].given_on = Expr::var(0) == 1; }},
          {"tensor.loc",
           [](Program& p) {
             p.tensors[1].loc = {"f", 3};
           }},
          {"signal.name", [&](Program& p) { rename(p.signals[0].name); }},
          {"signal.channels", [](Program& p) { p.signals[0].num_channels = 9; }},
          {"signal.per_source", [](Program& p) { p.signals[0].per_source = true; }},
          {"signal.loc", [](Program& p) { p.signals[0].loc.line = 3333; }},
          {"map.name", [&](Program& p) { rename(p.maps[0].name); }},
          {"map.tensor", [](Program& p) { p.maps[0].tensor = 1; }},
          {"map.tile_rows", [](Program& p) { p.maps[0].tile_rows = 33; }},
          {"map.rows_per_rank", [](Program& p) { p.maps[0].rows_per_rank = 33; }},
          {"map.channels", [](Program& p) { p.maps[0].channels_per_rank = 5; }},
          {"map.table",
           [](Program& p) {
             TileMap& m = p.maps[0];
             m.table_driven = true;
             m.rows_per_rank = {};
             m.num_tiles = 5;
             m.num_channels = 6;
             m.low = 0, m.high = 1, m.rank = 2, m.channel = 3, m.count = 0;
           }},
          {"map.loc", [](Program& p) { p.maps[0].loc.line = 3; }},
          {"on_start.name", [](Program& p) { p.on_start.name = "first"; }},
          {"on_end", [](Program& p) { p.on_end.num_threads = 32; }},
      });
}

TEST(Printer, EveryRoleAndOperationFieldShows) {
  auto op = [](Program& p, std::size_t agent, std::size_t i) -> Op& {
    return p.roles[0].agents[agent].body[i];
  };
  auto put = [&](Program& p) -> Op& { return op(p, 0, 0).bodies[0][0]; };
  expect_each_shows(
      sample::schedule_program(),
      {
          {"role.name", [](Program& p) { p.roles[0].name = "other"; }},
          {"resource.kind", [](Program& p) { p.roles[0].resource.kind = ResourceKind::kHost; }},
          {"resource.workers", [](Program& p) { p.roles[0].resource.num_workers = 5; }},
          {"resource.cluster", [](Program& p) { p.roles[0].resource.cluster_size = 4; }},
          {"resource.beside", [](Program& p) { p.roles[0].resource.beside = 0; }},
          {"resource.tickets", [](Program& p) { p.roles[0].resource.tickets = true; }},
          {"resource.consumers",
           [](Program& p) {
             p.roles[0].resource.num_stages = 2;
             p.roles[0].resource.num_consumers = 2;
           }},
          {"resource.stagger",
           [](Program& p) {
             p.roles[0].resource.num_stages = 3;
             p.roles[0].resource.stagger = 2;
           }},
          {"resource.tile_slots", [](Program& p) { p.roles[0].resource.tile_slots = 1; }},
          {"resource.products",
           [](Program& p) {
             p.roles[0].resource.num_stages = 3;
             p.roles[0].resource.products = ProductOrder::kInTurn;
           }},
          {"resource.store_slots",
           [](Program& p) {
             p.roles[0].resource.num_stages = 2;
             p.roles[0].resource.store_slots = 2;
           }},
          {"resource.load_slots",
           [](Program& p) {
             p.roles[0].resource.num_stages = 2;
             p.roles[0].resource.load_slots = 2;
           }},
          {"resource.stages", [](Program& p) { p.roles[0].resource.num_stages = 4; }},
          {"role.tile_var", [](Program& p) { p.roles[0].tile_var = 2; }},
          {"role.num_tiles", [](Program& p) { p.roles[0].num_tiles = 5; }},
          {"role.loc", [](Program& p) { p.roles[0].loc.line = 9; }},
          {"agent.name", [](Program& p) { p.roles[0].agents[1].name = "other"; }},
          {"agent.kind", [](Program& p) { p.roles[0].agents[1].kind = AgentKind::kEpilogue; }},
          {"agent.threads", [](Program& p) { p.roles[0].agents[1].num_threads = 64; }},
          {"agent.registers", [](Program& p) { p.roles[0].agents[1].num_registers = 64; }},
          {"value.dtype", [](Program& p) { p.roles[0].agents[1].values[0].dtype = DType::kI64; }},
          {"value.rows", [](Program& p) { p.roles[0].agents[1].values[0].rows = 3; }},
          {"value.cols", [](Program& p) { p.roles[0].agents[1].values[0].cols = 3; }},
          {"pipe.name", [](Program& p) { p.roles[0].pipes[1].name = "other"; }},
          {"pipe.type", [](Program& p) { p.roles[0].pipes[1].type.cols = 3; }},
          {"pipe.slots", [](Program& p) { p.roles[0].pipes[1].num_slots = 3; }},
          {"pipe.swizzle", [](Program& p) { p.roles[0].pipes[1].swizzle = Swizzle::kNone; }},
          {"pipe.producer", [](Program& p) { p.roles[0].pipes[1].producer = 1; }},
          {"pipe.consumer", [](Program& p) { p.roles[0].pipes[1].consumer = 0; }},
          {"barrier.name", [](Program& p) { p.roles[0].barriers[0].name = "other"; }},
          {"barrier.arrivals", [](Program& p) { p.roles[0].barriers[0].num_arrivals = 3; }},
          {"op.code", [&](Program& p) { op(p, 0, 1).code = OpCode::kArrive; }},
          {"op.result", [&](Program& p) { op(p, 1, 0).result = 1; }},
          {"op.operands", [&](Program& p) { op(p, 1, 4).operands[1] = 0; }},
          {"op.binary", [&](Program& p) { op(p, 1, 4).binary = BinaryOp::kMax; }},
          {"op.value", [&](Program& p) { op(p, 1, 0).value = 1e-300; }},
          {"op.exprs", [&](Program& p) { op(p, 0, 0).exprs[1] = 5; }},
          {"op.var", [&](Program& p) { op(p, 0, 0).var = 1; }},
          {"op.stage", [&](Program& p) { put(p).stage = 2; }},
          {"op.multicast", [&](Program& p) { put(p).multicast = 0xffffffffu; }},
          {"op.symbol", [&](Program& p) { put(p).symbol = 1; }},
          {"op.loc", [&](Program& p) { put(p).loc.line = 99; }},
          {"op.else", [&](Program& p) { op(p, 1, 5).bodies[1].clear(); }},
          {"region.tensor", [&](Program& p) { put(p).region->tensor = 1; }},
          {"region.rank", [&](Program& p) { put(p).region->rank = 0; }},
          {"region.origin", [&](Program& p) { put(p).region->origin[0] = 1; }},
          {"region.row_dim", [&](Program& p) { put(p).region->row_dim = -1; }},
          {"region.col_dim", [&](Program& p) { put(p).region->col_dim = 0; }},
          {"region.rows", [&](Program& p) { put(p).region->rows = 2; }},
          {"region.cols", [&](Program& p) { put(p).region->cols = 2; }},
          {"region.row_end", [&](Program& p) { put(p).region->row_end = 2; }},
          {"region.col_end", [&](Program& p) { put(p).region->col_end = 2; }},
      });
}

TEST(Printer, DoublesKeepEveryBit) {
  Program p = sample::schedule_program();
  double& value = p.roles[0].agents[1].body[0].value;
  for (double v :
       {0.1, -0.0, 5e-324, 1.7976931348623157e308, 1.0 / 3, -1e22,
        std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    value = v;
    Program back = parse(print(p), "text");
    double read = back.roles[0].agents[1].body[0].value;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(read), std::bit_cast<std::uint64_t>(v)) << v;
  }
  value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(parse(print(p), "text").roles[0].agents[1].body[0].value));
}

// Diagnostics print programs that are broken.
TEST(Printer, ShowsBrokenPieces) {
  Program p = sample::tile_program();
  Op op;
  op.code = OpCode::kStore;
  EXPECT_EQ(print_op(p, nullptr, op), "store <absent> to <absent>");
  op.code = OpCode::kPipePut;
  op.symbol = 4;
  EXPECT_EQ(print_op(p, nullptr, op), "pipe_put <4> = <absent>");
  EXPECT_EQ(print_expr(p, Expr::var(99) + Expr::table(-1, {Expr::var(1)})), "%<99> + @<-1>[%m]");
  EXPECT_EQ(print_region(p, Region{}), "@<-1>[] tile [1, 1] dims -1, 0");
}

TEST(Printer, ParenthesesFollowTheTree) {
  Program p = sample::tile_program();
  Expr a = Expr::var(0), b = Expr::var(1), c = Expr::var(2);
  EXPECT_EQ(print_expr(p, a - (b - c)), "%rank - (%m - %t)");
  EXPECT_EQ(print_expr(p, a - b - c), "%rank - %m - %t");
  EXPECT_EQ(print_expr(p, (a + b) * c % 4), "(%rank + %m) * %t % 4");
  EXPECT_EQ(print_expr(p, a < (b < c)), "%rank < (%m < %t)");
  EXPECT_EQ(print_expr(p, !(a == b) && c), "!(%rank == %m) && %t");
  EXPECT_EQ(print_expr(p, a * -3), "%rank * -3");
  EXPECT_EQ(print_expr(p, select(a, min(b, c), max(b, 1))),
            "select(%rank, min(%m, %t), max(%m, 1))");
}

}  // namespace
}  // namespace stretto::printer_test
