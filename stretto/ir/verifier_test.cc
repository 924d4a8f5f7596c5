#include "stretto/ir/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/sample_programs.h"

namespace stretto::verifier_test {
namespace {

// Sound programs of both levels that touch every operation; each bad program below is one of them
// with one piece of text replaced.
constexpr const char* kTile = R"(program "tile" world 2 level tile {
rank %rank
extent %m bound 64
scalar %pos bound 9
tile %t
tile %u
loop %i
loop %j
let %x
let %y
input @a : bf16[%m, 32] symmetric
input @idx : i32[8] contract range 0, 64
input @plain : i32[8]
input @table : f32[8]
buffer @full : bf16[%m, 32]
buffer @pk : f32[8, 8] symmetric slots 2 packet
state @flags : bool[8, 8]
state @ints : i64[8, 8]
output @c : f32[%m, 32]
signal s channels 4
signal src channels 2 per_source
map rows of @full tile_rows 8 rows_per_rank (%m + 1) / 2 channels_per_rank 2
map routed of @full tile_rows 8 table tiles 8 channels 8
low @idx high @idx rank @idx channel @idx count @idx
on_start body {
notify src[%rank] on 1 - %rank by 1
}
role mover copy_engine 1 tiles %u < 4 {
agent main body {
wait src[1 - %rank] >= 1 from 1 - %rank
copy @a[0, 0] on 1 - %rank tile [8, 32] to @full[%u * 8, 0] tile [8, 32]
producer_tile_notify s map rows tile %u mode local
}
}
role math sms 4 tiles %t < %m / 8 {
agent main body {
values $0: f32[8, 8], $1: bf16[8, 32], $2: bf16[32, 8], $3: i32[8, 1], $4: f32[8, 1],
$5: bool[8, 8], $6: f32[1, 8], $7: i32[8, 1], $8: f32[8, 8],
$9: i32[1, 8], $10: f32[8, 32], $11: f32[1, 1]
consumer_tile_wait s map rows rows %t * 8 to %t * 8 + 8
let %x = @idx[%t % 8]
$0 = fill 0
$3 = iota %x axis 0
$9 = iota 0 axis 1
$11 = splat %m
$1 = load @full[%t * 8, 0] tile [8, 32]
$1 = load_rows $3 of @full[0, 0] tile [8, 32]
$2 = transpose $1
$0 = dot $0, $1, $2
$4 = reduce max $0 axis 1
$6 = reduce sum $0 axis 0
$7 = reduce argmax $0 axis 1
$0 = dot_scaled $0, $1, $2, $4, $6
$8 = unary exp $0
$8 = binary sub $8, $4
$5 = binary lt $0, $8
$5 = unary not $5
$5 = binary and $5, $5
$8 = where $5, $0, $11
$8 = broadcast $6
$8 = copy_value $0
$10 = cast $1
loop %i from 0 to 4 {
$8 = binary add $8, $0
}
when %x < 3 {
let %y = 1
} else {
fence
}
store $10 to @c[%t * 8, 0] tile [8, 32]
store_rows $10 at $3 of @c[0, 0] tile [8, 32]
reduce_store $10 to @c[%t * 8, 0] tile [8, 32]
store_packet $0 to @pk[0, 0] on %rank tile [8, 8]
$8 = load_packet @pk[0, 0] tile [8, 8]
notify s[3] on 1 by 1
}
}
}
)";

constexpr const char* kSchedule = R"(program "schedule" world 2 level schedule {
rank %rank
tile %t
loop %i
input @a : f16[64, 64]
output @c : f32[64, 64]
role r sms 2 cluster 2 tiles %t < 4 {
pipe p : f16[64, 64] slots 2 swizzle b128 producer load consumer math
barrier all arrivals 2
agent load producer threads 128 {
loop %i from 0 to 2 {
pipe_put p = @a[0, 0] tile [64, 64] stage 1 multicast 3
}
arrive all
}
agent math consumer {
values $0: f32[64, 64], $1: f16[64, 64]
$0 = fill 0
loop %i from 0 to 2 {
$1 = pipe_get p
$0 = dot_async $0, $1, $1
await 0
pipe_release p
}
barrier_sync all
store $0 to @c[0, 0] tile [64, 64]
}
}
}
)";

int line_of(const std::string& text, std::size_t at) {
  return static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(at), '\n')) + 1;
}

std::string verdict(const Program& p) {
  try {
    verify(p);
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

struct BadText {
  const char* from;  // must occur exactly once
  const char* to;
  const char* reason;   // part of the message
  int lines_later = 0;  // the message names the line of `from`, or one that many lines later
};

void expect_refused(const std::string& good, const BadText& bad) {
  std::size_t at = good.find(bad.from);
  ASSERT_NE(at, std::string::npos) << bad.from;
  ASSERT_EQ(good.find(bad.from, at + 1), std::string::npos) << bad.from << " occurs twice";
  std::string text = good;
  text.replace(at, std::string(bad.from).size(), bad.to);
  std::string message = verdict(parse(text, "bad.txt", MissingLocs::kFill));
  std::string place = "bad.txt:" + std::to_string(line_of(good, at) + bad.lines_later) + ": ";
  EXPECT_EQ(message.substr(0, place.size()), place) << bad.to << "\n" << message;
  EXPECT_NE(message.find(bad.reason), std::string::npos) << bad.to << "\n" << message;
}

TEST(Verifier, AcceptsTheSoundPrograms) {
  EXPECT_EQ(verdict(parse(kTile, "good.txt", MissingLocs::kFill)), "accepted");
  EXPECT_EQ(verdict(parse(kSchedule, "good.txt", MissingLocs::kFill)), "accepted");
}

// What slips through here is undefined behaviour in the executor.
TEST(Verifier, RefusesBadDeclarations) {
  const BadText kCases[] = {
      {"program \"tile\"", "program \"ti le\"", "identifier"},
      {"world 2", "world 65", "world size 65"},
      {"world 2", "world 0", "world size 0"},
      {"rank %rank\n", "tile %rank\n", "variable 0 is not the rank", -1},
      {"tile %u\n", "rank %u\n", "second rank", -5},
      {"bound 64", "bound -1", "bound -1", -2},
      {"tile %u\n", "tile %u bound 4\n", "has a bound", -5},
      {"bf16[%m, 32] symmetric\ninput @idx", "bf16[%t, 32] symmetric\ninput @idx",
       "'t' has no value"},
      {"@table : f32[8]", "@table : f32[@plain[0]]", "may be read in a let only"},
      {"@table : f32[8]", "@table : f32[]", "0 dimensions"},
      {"@table : f32[8]", "@table : f32[8, 1, 1, 1, 1, 1]", "6 dimensions, need 1 to 5"},
      {"@table : f32[8]", "@table : f32[-8]", "dimension of -8"},
      {"@table : f32[8]", "@table : f32[1000000000000, 1000000]", "more than"},
      {"@table : f32[8]", "@table : f32[%m / 0]", "division by zero"},
      {"@table : f32[8]", "@table : f32[8] slots 2", "only buffers"},
      {"@table : f32[8]", "@table : f32[8] packet", "only buffers"},
      {"@table : f32[8]", "@table : f32[8] contract range 0, 1", "need integers"},
      {"@table : f32[8]", "@table : f32[8] given_on %rank == 0", "only local outputs"},
      {"output @c : f32[%m, 32]", "output @c : f32[%m, 32] given_on %m == 3",
       "need constants and the rank"},
      {"output @c : f32[%m, 32]", "output @c : f32[%m, 32] given_on %rank == 2",
       "given on no rank"},
      {"contract range 0, 64", "contract range 0, %t", "'t' has no value"},
      {"@table : f32[8]", "@table : i32[8, 1] contract partition 0, 9", "2 dimensions, need 1"},
      {"contract range 0, 64", "contract partition 0, 64", "low 'idx' must be an i32 tensor of 9",
       11},
      {"slots 2 packet", "slots 0 packet", "0 slots"},
      {"signal s channels 4", "signal s channels 0", "0 channels"},
      {"signal src channels 2", "signal src channels 3", "one per rank"},
      {"tile_rows 8 rows_per_rank", "tile_rows 0 rows_per_rank", "tiles of 0 rows"},
      {"rows_per_rank (%m + 1) / 2", "rows_per_rank %rank", "'rank' has no value"},
      {"rows_per_rank (%m + 1) / 2", "rows_per_rank 0", "a rank 0 rows"},
      {"rows_per_rank (%m + 1) / 2", "", "missing"},
      {"channels_per_rank 2", "channels_per_rank 0", "0 channels per rank"},
      {"low @idx", "low @plain", "with a contract", -1},
      {"low @idx", "low @table", "must be an i32", -1},
      {"tiles 8 channels 8", "tiles 9 channels 8", "of 9 entries"},
      {"copy_engine 1", "copy_engine 0", "0 workers"},
      {"copy_engine 1", "copy_engine 1 cluster 2", "only SMs"},
      {"copy_engine 1", "copy_engine 1 stages 2", "only SMs are pipelined"},
      {"copy_engine 1", "copy_engine 1 tickets", "only SMs do"},
      {"sms 4 tiles", "sms 4 tickets tiles", "by ticket and has a '"},
      {"sms 4 tiles", "sms 4 consumers 2 tiles", "only pipelined roles have several"},
      {"sms 4 tiles", "sms 4 stages 4 stagger 4 tiles", "one less than its 4 stages"},
      {"sms 4 tiles", "sms 4 products in_turn tiles", "only pipelined roles do"},
      {"sms 4 tiles", "sms 4 stages 4 stagger 2 products in_turn tiles", "an order of its own"},
      {"sms 4 tiles", "sms 4 tile_slots 0 tiles", "need 1 to"},
      {"sms 4 tiles", "sms 4 store_slots 2 tiles", "only pipelined roles with one consumer"},
      {"%u < 4", "%x < 4", "not a tile variable"},
      {"%u < 4", "%u < @idx[0]", "may be read in a let only"},
      {"%u < 4", "%u < -1", "-1 tiles"},
      {"%u < 4", "%u < %pos", "'pos' has no value"},
      {"sms 4 tiles %t < %m / 8 {\nagent main body",
       "sms 4 tiles %t < %m / 8 {\nagent main epilogue", "one agent of kind body"},
      {"$0: f32[8, 8]", "$0: f32[0, 8]", "f32[0, 8]", -2},
      {"on_start body", "on_start epilogue", "kind body", -24},
  };
  for (const BadText& bad : kCases) {
    expect_refused(kTile, bad);
  }
}

TEST(Verifier, RefusesBadOperations) {
  const BadText kCases[] = {
      {"$0 = fill 0\n$3", "$3", "$0 is read where it need not have been written", 6},
      {"from 0 to 4", "from 0 to %i", "'i' has no value"},
      {"let %x = @idx[%t % 8]", "let %t = 1", "not of kind let"},
      {"let %x = @idx[%t % 8]", "let %x = %x", "'x' has no value"},
      {"let %x = @idx[%t % 8]", "let %x = %u", "'u' has no value"},
      {"let %x = @idx[%t % 8]", "let %x = @plain[0]", "no contract"},
      {"let %x = @idx[%t % 8]", "let %x = @table[0]", "need integers"},
      {"let %x = @idx[%t % 8]", "let %x = @idx[0, 0]", "read with 2 indices"},
      {"when %x < 3", "when @idx[0]", "may be read in a let only"},
      {"when %x < 3", "when %y", "'y' has no value"},
      {"load @full[%t * 8, 0]", "load @full[@idx[0], 0]", "may be read in a let only"},
      {"loop %i from", "loop %x from", "not of kind loop"},
      {"$8 = binary add $8, $0", "loop %i from 0 to 1 {}", "counts a loop already"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0] tile [8, 32]", "origin has 1 entries"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [8, 32] dims 1, 1",
       "both run along dimension 1"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [8, 32] dims 2, 1",
       "row dimension 2"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [8, 32] dims 0, -1",
       "column dimension -1"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [8, 32] dims -1, 1",
       "without a row dimension"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [0, 32]", "tile of 0 x 32"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] on 1 tile [8, 32]",
       "must be symmetric"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @a[0, 0] on 2 tile [8, 32]",
       "outside the world"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @full[0, 0] tile [8, 16]", "the result is"},
      {"load @full[%t * 8, 0] tile [8, 32]", "load @pk[0, 0] tile [8, 8]", "packet operations"},
      {"load_packet @pk[0, 0]", "load_packet @c[0, 0]", "not a packet buffer"},
      {"\nstore $10 to @c", "\nstore $10 to @a", "read-only", 1},
      {"store $10 to @c[%t * 8, 0] tile [8, 32]\nstore_rows",
       "store $10 to @c[%t * 8, 0] tile [8, 16]\nstore_rows", "the region f32[8, 16]"},
      {"store $10 to @c[%t * 8, 0] tile [8, 32]\nstore_rows",
       "store $0 to @ints[0, 0] tile [8, 8]\nstore_rows", "cast it"},
      {"reduce_store $10 to @c[%t * 8, 0] tile [8, 32]",
       "reduce_store $5 to @flags[0, 0] tile [8, 8]", "reduce_store into bool"},
      {"store_rows $10 at $3", "store_rows $10 at $4", "row indices are f32[8, 1]"},
      {"load_rows $3 of @full[0, 0] tile [8, 32]", "load_rows $3 of @table[0] tile [1, 32]",
       "no row dimension"},
      {"iota %x axis 0", "iota %x axis 1", "the result is i32[1, 1]"},
      {"$11 = splat", "$0 = splat", "the result is f32[1, 1]"},
      {"dot $0, $1, $2\n", "dot $0, $1, $1\n", "inner sizes differ"},
      {"dot $0, $1, $2\n", "dot $1, $1, $2\n", "the accumulator is bf16[8, 32]"},
      {"dot $0, $1, $2\n", "dot $0, $3, $9\n", "need floats"},
      {"dot_scaled $0, $1, $2, $4, $6", "dot_scaled $0, $1, $2, $6, $4", "scales are"},
      {"unary exp $0", "unary exp $7", "exp of i32[8, 1], need a float"},
      {"unary not $5", "unary not $0", "need bool"},
      {"binary sub $8, $4", "binary sub $8, $1", "need one dtype"},
      {"$8 = binary sub $8, $4", "$4 = binary sub $8, $4", "the result is f32[8, 8]"},
      {"$8 = binary sub $8, $4\n", "$1 = binary sub $1, $2\n", "does not broadcast"},
      {"binary and $5, $5", "binary and $0, $0", "and of f32, need bool"},
      {"binary and $5, $5", "binary add $5, $5", "add of bool"},
      {"$5 = binary lt", "$8 = binary lt", "the result is b1[8, 8]"},
      {"where $5, $0, $11", "where $0, $0, $11", "the condition is f32[8, 8]"},
      {"where $5, $0, $11", "where $5, $0, $7", "the choices are"},
      {"broadcast $6", "broadcast $1", "does not broadcast"},
      {"copy_value $0", "copy_value $4", "the result is f32[8, 1]"},
      {"$10 = cast $1", "$0 = cast $1", "the result is f32[8, 32]"},
      {"$2 = transpose $1", "$1 = transpose $1", "the result is bf16[32, 8]"},
      {"reduce sum $0 axis 0", "reduce sum $1 axis 0", "need f32, f64 or i32"},
      {"$7 = reduce argmax", "$4 = reduce argmax", "the result is i32[8, 1]"},
      {"copy @a[0, 0] on 1 - %rank tile [8, 32] to", "copy @a[0, 0] tile [4, 32] to",
       "copy of bf16[4, 32] to bf16[8, 32]"},
      {"wait src[1 - %rank] >= 1 from 1 - %rank", "values $0: f32[1, 1] $0 = fill 1",
       "a copy engine cannot fill"},
      {"notify s[3]", "notify s[4]", "channel 4"},
      {"on 1 by 1\n}\n}\n}", "on 2 by 1\n}\n}\n}", "rank 2"},
      {"on 1 by 1\n}\n}\n}", "on 1 by -1\n}\n}\n}", "amount -1"},
      {"on 1 by 1\n}\n}\n}", "on 1 by %pos\n}\n}\n}", "a scalar decides"},
      {"src[1 - %rank] >= 1 from", "src[1 - %rank] >= -1 from", "threshold -1"},
      {"producer_tile_notify s map rows", "producer_tile_notify src map rows",
       "tile map 'rows' uses 4"},
      {"fence\n", "fence stage 1\n", "pipeline stage 1"},
      {"fence\n", "fence multicast 1\n", "only pipe_put may multicast"},
      {"fence\n", "await 0\n", "at schedule level only"},
  };
  for (const BadText& bad : kCases) {
    expect_refused(kTile, bad);
  }
}

TEST(Verifier, RefusesBadSchedules) {
  const BadText kCases[] = {
      {"pipe_put p = @a[0, 0] tile [64, 64]", "pipe_put p = @a[0, 0] tile [32, 64]",
       "pipe 'p' carries f16[64, 64]"},
      {"arrive all", "pipe_release p", "agent 'load' is not the consumer"},
      {"pipe_release p", "pipe_put p = @a[0, 0] tile [64, 64]", "'math' is not the producer"},
      {"$1 = pipe_get p", "$0 = pipe_get p", "the result is f16[64, 64]"},
      {"producer load consumer math", "producer load consumer load", "to itself", -1},
      {"slots 2 swizzle", "slots 0 swizzle", "0 slots", -1},
      {"p : f16[64, 64]", "p : f16[64, 0]", "f16[64, 0]", -1},
      {"arrivals 2", "arrivals 0", "0 arrivals", -2},
      {"threads 128", "threads 2000", "2000 threads", -3},
      {"threads 128", "registers 300", "300 registers", -3},
      {"multicast 3", "multicast 4", "of a cluster of 2"},
      {"stage 1", "stage -1", "pipeline stage -1"},
      {"await 0", "await -1", "negative"},
      {"cluster 2", "cluster 17", "clusters of 17"},
      {"cluster 2", "cluster 2 stages 1", "1 stages"},
      {"cluster 2", "cluster 2 stages 65", "65 stages"},
      {"$0 = fill 0\n", "", "$0 is read", 2},
      {"barrier_sync all", "$1 = copy_value $1", "$1 is read where"},
  };
  for (const BadText& bad : kCases) expect_refused(kSchedule, bad);
  std::string tile_op = kSchedule;
  tile_op.replace(tile_op.find("level schedule"), 14, "level tile");
  EXPECT_NE(verdict(parse(tile_op, "bad.txt", MissingLocs::kFill)).find("bad.txt:7: role 'r' must"),
            std::string::npos);
}

// Registers have the scope of the block that first writes them.
// By ticket no tile comes before another, so none may depend on what another has written.
TEST(Verifier, TicketsNeedTilesThatDoNotDependOnEachOther) {
  const std::string text = R"(program "tickets" world 1 level tile {
rank %rank
tile %t
let %x
input @in : i32[4, 8] contract range 0, 4
state @seen : i32[4, 8] contract range 0, 4
role r sms 2 tickets tiles %t < 4 {
agent main body {
values $0: i32[1, 8]
let %x = @in[0, 0]
$0 = load @in[%t, 0] tile [1, 8]
store $0 to @seen[%t, 0] tile [1, 8]
}
}
}
)";
  EXPECT_EQ(verdict(parse(text, "good.txt", MissingLocs::kFill)), "accepted");
  expect_refused(text,
                 {"let %x = @in[0, 0]", "let %x = @seen[0, 0]", "reads 'seen', which it", -3});
  expect_refused(text,
                 {"load @in[%t, 0]", "load @seen[%t, 0]", "reads 'seen', which it writes", -4});
}

TEST(Verifier, RegistersOfABodyEndWithIt) {
  std::string text = kSchedule;
  auto with = [&](const std::string& ops) {
    std::string changed = text;
    const std::string store = "store $0 to @c[0, 0] tile [64, 64]\n";
    changed.replace(changed.find("$0 = fill 0\n"), 12, "");
    std::size_t begin = changed.find("loop %i from 0 to 2 {\n$1"), end = changed.find(store);
    return verdict(parse(changed.replace(begin, end - begin, ops), "bad.txt", MissingLocs::kFill));
  };
  EXPECT_EQ(with("$0 = fill 0\nloop %i from 0 to 2 { $0 = fill 1 }\n"), "accepted");
  EXPECT_NE(with("loop %i from 0 to 2 { $0 = fill 1 }\n").find("$0 is read"), std::string::npos);
  EXPECT_NE(with("when %t { $0 = fill 1 } else { $0 = fill 2 }\n").find("$0 is read"),
            std::string::npos);
  EXPECT_NE(with("loop %i from 0 to 2 { $1 = copy_value $1 $1 = fill 1 }\n").find("$1 is read"),
            std::string::npos);
}

// Programs that the text form cannot express: indices out of range, missing pieces.
TEST(Verifier, RefusesBrokenStructures) {
  struct Broken {
    const char* reason;
    std::function<void(Program&)> change;
  };
  auto op = [](Program& p, std::size_t role, std::size_t i) -> Op& {
    return p.roles[role].agents[0].body[i];
  };
  const Broken kTileCases[] = {
      {"sample.cc:2: tensor 'a' is declared twice",
       [](Program& p) {
         p.tensors[1].name = "a";
         p.tensors[1].loc = {"sample.cc", 2};
       }},
      {"sample.cc:3: a signal needs an identifier", [](Program& p) { p.signals[0].name = "a b"; }},
      {"sample.cc:1: variable 'm' is declared twice", [](Program& p) { p.vars[2].name = "m"; }},
      {"sample.cc:1: tile map 'rows' names tensor 9", [](Program& p) { p.maps[0].tensor = 9; }},
      {"sample.cc:6: role 'gather' has no agent",
       [](Program& p) {
         p.level = Level::kSchedule;
         p.on_start.body.clear();
         p.roles[0].agents.clear();
       }},
      {"sample.cc:6: role 'gather' must be one agent",
       [](Program& p) { p.roles[0].agents.push_back({"more"}); }},
      {"sample.cc:6: role 'gather' has pipes", [](Program& p) { p.roles[0].pipes.resize(1); }},
      {"sample.cc:6: role 'gather': variable -1", [](Program& p) { p.roles[0].tile_var = -1; }},
      {"sample.cc:6: role 'gather': number of tiles: an expression is missing",
       [](Program& p) { p.roles[0].num_tiles = {}; }},
      {"sample.cc:8: signal 7 does not exist", [&](Program& p) { op(p, 0, 1).symbol = 7; }},
      {"sample.cc:8: wait has 0 index expressions", [&](Program& p) { op(p, 0, 1).exprs.clear(); }},
      {"sample.cc:8: index expression: variable 99",
       [&](Program& p) { op(p, 0, 1).exprs[0] = Expr::var(99); }},
      {"sample.cc:7: index expression: table 99",
       [&](Program& p) { op(p, 0, 0).exprs[0] = Expr::table(99, {0}); }},
      {"sample.cc:9: copy needs 2 regions", [&](Program& p) { op(p, 0, 2).region2.reset(); }},
      {"sample.cc:9: tensor 12 does not exist",
       [&](Program& p) { op(p, 0, 2).region->tensor = 12; }},
      {"sample.cc:10: tile map 1 does not exist", [&](Program& p) { op(p, 0, 3).symbol = 1; }},
      {"sample.cc:10: signal -1 does not exist", [&](Program& p) { op(p, 0, 3).symbol2 = -1; }},
      {"sample.cc:13: register $50 does not exist", [&](Program& p) { op(p, 1, 1).result = 50; }},
      {"sample.cc:13: fill needs a result", [&](Program& p) { op(p, 1, 1).result = -1; }},
      {"sample.cc:14: loop has 0 bodies", [&](Program& p) { op(p, 1, 2).bodies.clear(); }},
      {"sample.cc:14: loop over variable -1", [&](Program& p) { op(p, 1, 2).var = -1; }},
      {"sample.cc:19: register $-2 does not exist",
       [&](Program& p) { op(p, 1, 3).operands[0] = -2; }},
      {"sample.cc:19: store has 0 operands", [&](Program& p) { op(p, 1, 3).operands.clear(); }},
      {"sample.cc:19: store writes no register", [&](Program& p) { op(p, 1, 3).result = 0; }},
      {"sample.cc:11: store has 0 operands",  // no line of its own: the role's
       [&](Program& p) {
         op(p, 1, 3).operands.clear();
         op(p, 1, 3).loc = {};
       }},
      {"sample.cc:14: loops and whens nest more than 64 deep",
       [&](Program& p) {
         Op when;
         when.code = OpCode::kWhen;
         when.exprs = {1};
         when.bodies.resize(2);
         when.loc = {"sample.cc", 14};
         for (int i = 0; i < 70; ++i) {
           Op outer = when;
           outer.bodies[0] = {std::move(when)};
           when = std::move(outer);
         }
         p.roles[1].agents[0].body = {when};
       }},
      {"sample.cc:7: index expression: an expression is more than 400 deep",
       [&](Program& p) {
         Expr& e = op(p, 0, 0).exprs[0];
         for (int i = 0; i < 500; ++i) e = e * 2 + 1;
       }},
      {"sample.cc:7: index expression: an expression has more than 20000 parts",
       [&](Program& p) {
         Expr& e = op(p, 0, 0).exprs[0];
         for (int i = 0; i < 60; ++i) e = e + e;
       }},
  };
  for (const Broken& b : kTileCases) {
    Program p = sample::tile_program();
    b.change(p);
    std::string message = verdict(p);
    EXPECT_EQ(message.substr(0, std::string(b.reason).size()), b.reason) << message;
  }
  const Broken kScheduleCases[] = {
      {"sample \"2\".cc:1: pipe 'pipe_a' connects agents 0 and 2",
       [](Program& p) { p.roles[0].pipes[0].consumer = 2; }},
      {"sample.cc:3: pipe 5 does not exist",
       [](Program& p) { p.roles[0].agents[0].body[0].bodies[0][0].symbol = 5; }},
      {"sample.cc:5: barrier 1 does not exist",
       [](Program& p) { p.roles[0].agents[0].body[1].symbol = 1; }},
      {"sample.cc:5: barrier 0 does not exist",
       [](Program& p) { p.on_end.body = {p.roles[0].agents[0].body[1]}; }},
  };
  for (const Broken& b : kScheduleCases) {
    Program p = sample::schedule_program();
    b.change(p);
    std::string message = verdict(p);
    EXPECT_EQ(message.substr(0, std::string(b.reason).size()), b.reason) << message;
  }
}

}  // namespace
}  // namespace stretto::verifier_test
