// Rows that a table deals out, in programs whose sizes fall into pieces: loops over the rows of a
// part are taken whole. The reference is every size by itself, where each iteration is walked. If
// these fail, an expert layer adds up rows that nobody has multiplied yet, or none of its sizes is
// proved at once.
#include "stretto/proof/part_turns.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/one_by_one_testing.h"
#include "stretto/proof/prove.h"

namespace stretto::part_turns_test {
namespace {

constexpr std::int64_t kTile = 8, kCols = 16, kSteps = 3, kBound = 90;

// Rows of experts are multiplied, then added up by token, as sorted_gemm_ar does. Each part of a
// product takes every row_parts-th tile of its expert's rows.
struct Experts {
  int world = 1;
  std::int64_t experts = 2, row_parts = 2, workers = 3;
  bool output = true;            // products, or a buffer
  std::int64_t dealt_parts = 2;  // of row_parts, that somebody takes
  std::int64_t store_rows = kTile;
  std::int64_t rows_later = 0;   // that an iteration begins behind its place
  std::int64_t store_later = 0;  // ... of what it stores alone
  std::int64_t fewer_turns = 0;
  bool rounds_up = true;       // how many turns there are
  bool ends = true;            // stores end with the part
  bool waits = true;           // sums, for all products
  std::int64_t waits_for = 0;  // fewer
  std::int64_t sums_more = 0;  // rows than there are
  bool twice = false;          // stored
  bool waits_in_turn = false;  // for a signal
  bool other_writes = false;   // somebody stores a row of its own choice
  bool carries = false;        // a row that an iteration takes over from the one before
};

Program experts(const Experts& o) {
  ProgramBuilder p("experts", o.world);
  Index m = p.extent("m", kBound), share = ceil_div(m, o.world), rows = m * 2;
  auto offsets = p.table("offsets", {o.experts + 1}, {ContractKind::kPartition, 0, rows + 1});
  auto slots = p.table("slots", {m, 1}, {ContractKind::kRange, 0, rows});
  auto a = p.input("a", DType::kBF16, {rows, kSteps * kTile});
  auto b = p.input("b", DType::kBF16, {kCols, kSteps * kTile});
  auto products = o.output ? p.output("products", DType::kF32, {rows, kCols})
                           : p.buffer("products", DType::kF32, {rows, kCols});
  auto out = p.output("out", DType::kF32, {share, kCols});
  auto ready = p.signal("ready", 1), made = p.signal("made", 1);
  const std::int64_t num_products = o.experts * o.dealt_parts;
  p.on_start([&] {
    if (o.waits_in_turn) p.notify(ready[0], p.rank());
  });
  p.role("multiply", Resource::sms(static_cast<int>(o.workers)).pipelined(3), p.range(num_products),
         [&](const Tile& t) {
           Index expert = p.let("expert", t.index / o.dealt_parts);
           Index part = p.let("part", t.index % o.dealt_parts);
           Index first = p.read(offsets, {expert}), end = p.read(offsets, {expert + 1});
           const std::int64_t step = kTile * o.row_parts;
           Index turns = o.rounds_up ? ceil_div(rows, step) : rows / step;
           p.loop(turns - o.fewer_turns, [&](const Index& i) {
             Index row = p.let("row", first + (i * o.row_parts + part) * kTile + o.rows_later);
             p.when(row < end, [&] {
               if (o.waits_in_turn) p.wait(ready[0], 1);
               Value acc = p.zeros(DType::kF32, kTile, kCols);
               p.loop(kSteps, [&](const Index& k) {
                 acc = dot(acc, p.load(a.tile({row, k * kTile}, kTile, kTile).until_row(end)),
                           p.load(b.tile({0, k * kTile}, kCols, kTile)).T());
               });
               auto to = [&] {
                 Slice whole = products.tile({row + o.store_later, 0}, kTile, kCols);
                 return o.ends ? whole.until_row(end) : whole;
               };
               p.store(to(), acc);
               if (o.twice) p.store(to(), acc);
             });
           });
           if (o.other_writes) {
             p.when(t.index < m, [&] {
               p.store(products.tile({t.index, 0}, 1, kCols), p.zeros(DType::kF32, 1, kCols));
             });
           }
           p.notify(made[0], p.rank());
         });
  p.role("sum", Resource::sms(2), p.range(ceil_div(kBound, kTile)), [&](const Tile& t) {
    if (o.waits) p.wait(made[0], num_products - o.waits_for);
    Value picked = p.load(slots.tile({t.index * kTile, 0}, kTile, 1).until_row(m));
    p.store(out.tile({t.index * kTile, 0}, kTile, kCols).until_row(share + o.sums_more),
            p.load_rows(products.tile({0, 0}, kTile, kCols), picked));
  });
  return run_pipeline(p.finish());
}

std::string text(const Experts& o) {
  return fmt::format(
      "world {} experts {} row_parts {} workers {} output {} dealt {} later {} store later {} "
      "fewer "
      "{} up {} ends {} waits {} for {} less, twice {} in turn {} others {}",
      o.world, o.experts, o.row_parts, o.workers, o.output, o.dealt_parts, o.rows_later,
      o.store_later, o.fewer_turns, o.rounds_up, o.ends, o.waits, o.waits_for, o.twice,
      o.waits_in_turn, o.other_writes);
}

TEST(PartTurns, FewPiecesStandForAllSizesAndTables) {
  for (int world : {1, 2}) {
    for (bool output : {true, false}) {
      Program program = experts({.world = world, .output = output});
      ProofResult r = prove(program);
      EXPECT_TRUE(r.proved()) << r.report;
      EXPECT_LT(r.stats.cases, 12) << r.report;
      ProofResult each = one_by_one(program);
      EXPECT_TRUE(each.proved()) << each.report;
    }
  }
}

TEST(PartTurns, WhatIsWrongAtSomeSizeIsNotProved) {
  const Experts kWrong[] = {
      {.dealt_parts = 1},                  // every second tile of rows
      {.row_parts = 1},                    // tiles that meet
      {.row_parts = 3, .dealt_parts = 2},  // every third tile of rows
      {.rows_later = 1},                   // the first row of every part
      {.store_later = 1},
      {.fewer_turns = 1},
      {.rounds_up = false},
      {.ends = false},  // into the next part
      {.waits = false},
      {.waits_for = 1},
      {.twice = true},
      {.other_writes = true},
  };
  for (bool output : {true, false}) {
    for (Experts o : kWrong) {
      o.output = output;
      if (o.twice && !output) continue;  // a buffer may be written again
      SCOPED_TRACE(text(o));
      Program program = experts(o);
      ProofResult r = prove(program);
      EXPECT_FALSE(r.proved()) << r.report;
    }
  }
}

// The reference says so, too, of those that it has time for.
TEST(PartTurns, TheReferenceRejectsThem) {
  const Experts kWrong[] = {
      {.dealt_parts = 1}, {.rows_later = 1}, {.fewer_turns = 1}, {.waits_for = 1}, {.ends = false},
  };
  for (const Experts& o : kWrong) {
    SCOPED_TRACE(text(o));
    ProofResult each = one_by_one(experts(o));
    EXPECT_FALSE(each.proved()) << "meant to be broken: " << each.report;
  }
}

// Programs by lot, a part of them wrong: none is proved of which some size is not.
TEST(PartTurns, NothingIsProvedThatIsWrongAtSomeSize) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int proved = 0, wrong = 0;
  for (int i = 0; i < 12; ++i) {
    Experts o{.world = 1 + static_cast<int>(below(2)),
              .experts = 1 + below(3),
              .row_parts = 1 + below(3),
              .workers = 1 + below(4),
              .output = below(2) == 0};
    o.dealt_parts = o.row_parts - (below(5) == 0 && o.row_parts > 1 ? 1 : 0);
    if (below(6) == 0) o.store_later = 1 + below(2);
    if (below(6) == 0) o.fewer_turns = 1;
    if (below(6) == 0) o.waits_for = 1;
    if (below(8) == 0) o.ends = false;
    SCOPED_TRACE(text(o));
    Program program = experts(o);
    ProofResult r = prove(program), each = one_by_one(program);
    EXPECT_EQ(r.proved(), each.proved()) << r.report << "\n" << each.report;
    (each.proved() ? proved : wrong) += 1;
  }
  EXPECT_GT(proved + wrong, 0);
}

// One agent takes other turns than the one that it passes slots to.
TEST(PartTurns, AgentsOfAWorkerTakeTheSameTurns) {
  for (int broken : {0, 1, 2, 3}) {
    Program program = experts({});
    Agent& consumer = program.roles[0].agents.back();
    auto change = [&](const auto& self, Block& block) -> void {
      for (Op& op : block) {
        if (op.code == OpCode::kLet &&
            program.vars[static_cast<std::size_t>(op.var)].name == "row") {
          if (broken == 1) op.exprs[0] = op.exprs[0] + Expr(kTile);  // rows of the next part
          if (broken == 2) op.exprs[0] = op.exprs[0] + Expr(2 * kTile);
        }
        if (op.code == OpCode::kLoop && broken == 3 && uses_var(op.exprs[1], 1)) {
          op.exprs[1] = op.exprs[1] - Expr(1);
        }
        for (Block& body : op.bodies) self(self, body);
      }
    };
    change(change, consumer.body);
    ProofResult r = prove(program);
    EXPECT_EQ(r.proved(), broken == 0) << broken << ": " << r.report;
  }
}

// Loops are found where they are what they are taken for.
TEST(PartTurns, LoopsAreTakenThatDoNothingElse) {
  auto rows_of = [](const Experts& o) {
    Program program = experts(o);
    PartTurns turns(program);
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      if (auto rows = turns.rows_of(static_cast<int>(t))) return rows->step;
    }
    return std::int64_t{0};
  };
  EXPECT_EQ(rows_of({}), 2 * kTile);
  EXPECT_EQ(rows_of({.row_parts = 3, .dealt_parts = 3}), 3 * kTile);
  EXPECT_EQ(rows_of({.fewer_turns = 1}), 0);
  EXPECT_EQ(rows_of({.rounds_up = false}), 0);
  EXPECT_EQ(rows_of({.ends = false}), 0);
  EXPECT_EQ(rows_of({.store_later = 1}), 0);
  EXPECT_EQ(rows_of({.waits_in_turn = true}), 0);
  EXPECT_EQ(rows_of({.other_writes = true}), 0);
}

}  // namespace
}  // namespace stretto::part_turns_test
