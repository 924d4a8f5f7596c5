// Sizes that a program meets in nothing but what a partition deals out, proved at their bound
// alone. The reference is every size with every table, one by one. If these fail, packed sequences
// of some length may be written twice or not at all, or their proof takes each size by itself.
#include "stretto/proof/hidden_sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"

namespace stretto::hidden_sizes_test {
namespace {

constexpr std::int64_t kBound = 80, kParts = 2, kFew = 4;

// Parts of `out` are made in tiles that take turns, as sequences are.
struct Packed {
  std::int64_t rows = -1;  // -1: an extent
  std::int64_t tile = 2, blocks = 2, stride = 2;
  std::int64_t skips = 0, ends = 1, short_by = 0;
  std::int64_t contract_end = 1;  // beyond the rows, -1: of the bound's rows
  bool asks = true;               // whether the tile has rows
  bool by_size = false;           // does more where there are many rows
  bool reads = false;             // a buffer of as many rows that another role makes
  bool waits = true;
};

Program packed(const Packed& o) {
  ProgramBuilder p("packed", 1);
  Index m = o.rows < 0 ? p.extent("m", kBound) : Index(o.rows);
  Index end_of_parts = o.contract_end < 0 ? Index(kBound + 1) : m + o.contract_end;
  auto starts = p.table("starts", {kParts + 1}, {ContractKind::kPartition, 0, end_of_parts});
  auto in = p.input("in", DType::kF32, {m, 4});
  auto out = p.output("out", DType::kF32, {m, 4});
  TensorRef from = in;
  SignalRef made;
  if (o.reads) {
    from = p.buffer("made", DType::kF32, {m, 4});
    made = p.signal("done", kParts);
    p.role("make", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
      Index row = p.read(starts, {t.index}), end = p.read(starts, {t.index + 1});
      p.loop(ceil_div(end - row, 2), [&](const Index& i) {
        p.store(from.tile({row + i * 2, 0}, 2, 4).until_row(end),
                p.load(in.tile({row + i * 2, 0}, 2, 4).until_row(end)));
      });
      p.notify(made[t.index], p.rank());
    });
  }
  p.role("attend", Resource::sms(2), p.range(kParts * o.blocks), [&](const Tile& t) {
    Index part = p.let("part", t.index / o.blocks), first = p.let("first", t.index % o.blocks);
    Index begin = p.read(starts, {part}), end = p.read(starts, {min(part + o.ends, kParts)});
    if (o.reads && o.waits) p.wait(made[part]);
    p.loop(ceil_div(end - begin - o.short_by, o.tile * o.blocks), [&](const Index& i) {
      Index row = p.let("row", begin + (first + o.skips + i * o.stride) * o.tile);
      auto store = [&] {
        p.store(out.tile({row, 0}, o.tile, 4).until_row(end),
                p.load(from.tile({row, 0}, o.tile, 4).until_row(end)));
      };
      o.asks ? p.when(row < end, store) : store();
    });
    if (o.by_size) {
      p.when(Index(kFew) < m, [&] {
        p.store(out.tile({begin, 0}, 1, 4).until_row(end), p.zeros(DType::kF32, 1, 4));
      });
    }
  });
  return run_pipeline(p.finish());
}

// Rows of `rows_per_token` for each of m tokens are dealt out to parts, and each part is made some
// rows at a time, in as many turns as all rows would take.
struct Products {
  std::int64_t rows = -1;  // of tokens; -1: an extent
  std::int64_t tile = 4, turns = 2, step = 2;
  std::int64_t less = 0;     // turns than that takes
  std::int64_t every = 4;    // rows that a turn is counted by
  bool asks = true;          // whether there is a row
  bool by_entry = false;     // an index is an entry of a table with as many
  bool else_stores = false;  // something where the part has no such rows
};

Program products(const Products& o) {
  ProgramBuilder p("products", 1);
  Index m = o.rows < 0 ? p.extent("m", kBound) : Index(o.rows), rows = m * 2;
  auto starts = p.table("starts", {kParts + 1}, {ContractKind::kPartition, 0, rows + 1});
  auto picked = p.table("picked", {rows}, {ContractKind::kRange, 0, kBound});
  auto in = p.input("in", DType::kF32, {m, 4});
  auto out = p.output("out", DType::kF32, {rows, 4});
  p.role("multiply", Resource::sms(2), p.range(kParts * o.turns), [&](const Tile& t) {
    Index part = p.let("part", t.index / o.turns), turn = p.let("turn", t.index % o.turns);
    Index begin = p.read(starts, {part}), end = p.read(starts, {part + 1});
    p.loop(max(ceil_div(rows, o.every * o.turns) - o.less, 0), [&](const Index& i) {
      Index row = p.let("row", begin + (i * o.step + turn) * o.tile);
      auto store = [&] {
        Index from = o.by_entry ? p.read(picked, {0}) : row;
        p.store(out.tile({row, 0}, o.tile, 4).until_row(end),
                p.load(in.tile({from, 0}, o.tile, 4)));
      };
      if (o.else_stores) {
        p.when(row < end, store, [&] {
          p.store(out.tile({begin, 0}, 1, 4).until_row(end), p.zeros(DType::kF32, 1, 4));
        });
      } else {
        o.asks ? p.when(row < end, store) : store();
      }
    });
  });
  return run_pipeline(p.finish());
}

// Row i of the input goes to the row that entry i names, and nowhere where it is negative.
struct Written {
  std::int64_t more_tiles = 0;
  std::int64_t least = -1;       // entry
  std::int64_t asked = 0;        // from which entry on
  std::int64_t ahead = 0;        // whose entry it is
  std::int64_t width = 1;        // rows that are written
  bool outside = false;          // of the condition, too
  bool else_stores = false;
  bool others_read = false;
};

constexpr std::int64_t kSlots = 200;

Program written(const Written& o) {
  ProgramBuilder p("written", 1);
  Index m = p.extent("m", kBound);
  auto slots = p.table("slots", {m}, {ContractKind::kPermutation, o.least, kSlots});
  auto in = p.input("in", DType::kF32, {kBound + 1, 4});
  auto kept = p.state("kept", DType::kF32, {kSlots + 8, 4});
  auto store = [&](const TensorRef& to, const Index& row, std::int64_t rows, const Tile& t) {
    p.store(to.tile({row, 0}, rows, 4),
            rows == 1 ? p.load(in.tile({t.index, 0}, 1, 4)) : p.zeros(DType::kF32, rows, 4));
  };
  p.role("write", Resource::sms(2), p.range(m + o.more_tiles), [&](const Tile& t) {
    Index entry = o.ahead == 0 ? t.index : min(t.index + o.ahead, m - 1);
    Index slot = p.let("slot", p.read(slots, {entry}));
    auto then = [&] { store(kept, slot, o.width, t); };
    if (o.outside) store(kept, Index(kSlots), 1, t);
    if (o.else_stores) {
      p.when(slot >= o.asked, then, [&] { store(kept, Index(kSlots), 1, t); });
    } else {
      p.when(slot >= o.asked, then);
    }
  });
  if (o.others_read) {
    auto more = p.state("more", DType::kF32, {1, 4});
    p.role("read", Resource::sms(1), p.range(1), [&](const Tile& t) {
      p.when(p.read(slots, {0}) >= 0, [&] { store(more, Index(0), 1, t); });
    });
  }
  return run_pipeline(p.finish());
}

class Given : public TableWitness {
 public:
  explicit Given(std::vector<std::int64_t> starts) : starts_(std::move(starts)) {}
  std::int64_t value(int, int, std::span<const std::int64_t> index) const override {
    return starts_.at(static_cast<std::size_t>(index[0]));
  }
  std::string name() const override { return "given"; }

 private:
  std::vector<std::int64_t> starts_;
};

// At so many rows, for every partition of them.
bool holds_at(Packed o, std::int64_t rows) {
  o.rows = rows;
  Program program = packed(o);
  for (std::int64_t cut = 0; cut <= rows; ++cut) {
    Given given({0, cut, rows});
    if (prove(program, {.tables = &given}).rejected()) return false;
  }
  return true;
}

bool holds_at_few(const Packed& o) {
  for (std::int64_t rows = 0; rows <= 2 * kFew + 1; ++rows) {
    if (!holds_at(o, rows)) return false;
  }
  return true;
}

TEST(HiddenSizes, RightProgramsAreProvedAtOneSize) {
  for (const Packed& o : {Packed{}, Packed{.asks = false},
                          Packed{.tile = 3, .blocks = 1, .stride = 1}, Packed{.reads = true}}) {
    Program program = packed(o);
    EXPECT_EQ(hidden_sizes(program), std::vector<bool>{true});
    ProofResult r = prove(program);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_EQ(r.stats.cases, 1) << r.report;
    EXPECT_TRUE(holds_at_few(o));
  }
}

TEST(HiddenSizes, WrongProgramsStayRejected) {
  const std::vector<Packed> kWrong = {
      {.stride = 1},    // a tile's turns are another's
      {.stride = 3},    // rows left out
      {.skips = 1},     // the first rows left out
      {.ends = 2},      // into the next part
      {.short_by = 4},  // the last rows left out
      {.reads = true, .waits = false},
      {.by_size = true},  // twice, of many rows
  };
  for (const Packed& o : kWrong) {
    EXPECT_TRUE(prove(packed(o)).rejected()) << print(packed(o));
    EXPECT_FALSE(holds_at_few(o)) << "meant to be broken: " << print(packed(o));
  }
}

// A tile without an entry does nothing, so sizes are tables that leave tiles out.
TEST(HiddenSizes, TilesThatEntriesLeaveOutDoNotCount) {
  Program program = written({});
  ProofResult r = prove(program);
  EXPECT_EQ(hidden_sizes(program), std::vector<bool>{true}) << print(program);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_EQ(r.stats.cases, 1) << r.report;
  // The next slot's row, too, which another tile may write.
  Program wide = written({.width = 2});
  EXPECT_EQ(hidden_sizes(wide), std::vector<bool>{true});
  EXPECT_TRUE(prove(wide).rejected());
  const Written kOthers[] = {
      {.more_tiles = 1},      // whose entry is not there
      {.least = 0},           // entries that leave none out
      {.asked = -1},          // a tile without an entry does something
      {.ahead = 1},           // another tile's entry
      {.outside = true},      // a row that goes by no entry
      {.else_stores = true},  // the same
      {.others_read = true},  // an entry that no size need have
  };
  for (const Written& o : kOthers) {
    EXPECT_EQ(hidden_sizes(written(o)), std::vector<bool>{false}) << print(written(o));
  }
}

// What goes by the size itself is looked at for each.
TEST(HiddenSizes, WhatGoesByTheSizeIsNotHidden) {
  EXPECT_EQ(hidden_sizes(packed({.by_size = true})), std::vector<bool>{false});
  EXPECT_EQ(hidden_sizes(packed({.contract_end = 0})), std::vector<bool>{false});
  EXPECT_EQ(hidden_sizes(packed({.contract_end = 2})), std::vector<bool>{false});
  EXPECT_EQ(hidden_sizes(packed({.contract_end = -1})), std::vector<bool>{false});
  EXPECT_FALSE(prove(packed({.contract_end = -1})).proved());
  ProgramBuilder p("other_rows", 1);
  Index m = p.extent("m", kBound), n = p.extent("n", kBound);
  auto starts = p.table("starts", {kParts + 1}, {ContractKind::kPartition, 0, m + 1});
  auto sizes = p.table("sizes", {n + 1}, {ContractKind::kRange, 0, m + 1});
  auto out = p.output("out", DType::kF32, {n, 4});
  p.role("fill", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
    Index row = p.read(starts, {t.index}), end = p.read(starts, {t.index + 1});
    p.store(out.tile({row + p.read(sizes, {0}), 0}, kBound, 4).until_row(end),
            p.zeros(DType::kF32, kBound, 4));
  });
  // `out` has not as many rows as the partition, and a table has as many entries as `n` says.
  EXPECT_EQ(hidden_sizes(run_pipeline(p.finish())), (std::vector<bool>{true, false}));
}

bool products_hold(Products o) {
  for (o.rows = 0; o.rows <= kFew + 1; ++o.rows) {
    Program program = products(o);
    for (std::int64_t cut = 0; cut <= 2 * o.rows; ++cut) {
      Given given({0, cut, 2 * o.rows, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
      if (prove(program, {.tables = &given}).rejected()) return false;
    }
  }
  return true;
}

// Turns beyond the rows of a part do nothing, so it does not matter how many there are.
TEST(HiddenSizes, TurnsBehindAllRowsDoNotCount) {
  for (const Products& o :
       {Products{}, Products{.tile = 5, .turns = 1, .step = 1, .every = 5}, Products{.every = 3}}) {
    Program program = products(o);
    EXPECT_EQ(hidden_sizes(program), std::vector<bool>{true});
    ProofResult r = prove(program);
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_LT(r.stats.cases, 4) << r.report;  // or pieces (part_turns.h)
    EXPECT_TRUE(products_hold(o));
  }
  const Products kOthers[] = {
      {.less = 1},            // a turn too few, at some sizes
      {.every = 5},           // rows of the last turns are left out
      {.asks = false},        // turns do something behind the part
      {.by_entry = true},     // an entry is not there, of no rows
      {.else_stores = true},  // turns behind the part write its first row
  };
  for (const Products& o : kOthers) {
    EXPECT_EQ(hidden_sizes(products(o)), std::vector<bool>{false});
    bool holds = products_hold(o);
    EXPECT_FALSE(prove(products(o)).proved() && !holds) << print(products(o));
  }
}

// What is proved at the bound is right at each size, for each table.
TEST(HiddenSizes, NothingIsProvedThatIsWrongAtSomeSize) {
  std::uint64_t seed = test_seed();
  int right = 0, proved = 0, wrong = 0;
  for (int i = 0; i < 120; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " + " << i);
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
    auto one_in = [&](std::uint64_t n) { return random() % n == 0; };
    Packed o{.tile = 1 + static_cast<std::int64_t>(random() % 3),
             .blocks = 1 + static_cast<std::int64_t>(random() % 3)};
    o.stride = o.blocks + (one_in(5) ? 1 - 2 * static_cast<std::int64_t>(random() % 2) : 0);
    o.skips = one_in(8) ? 1 : 0;
    o.ends = one_in(8) ? 2 : 1;
    o.short_by = one_in(5) ? static_cast<std::int64_t>(random() % 4) : 0;
    o.contract_end = one_in(6) ? static_cast<std::int64_t>(random() % 4) - 1 : 1;
    o.asks = one_in(2);
    o.by_size = one_in(8);
    o.reads = one_in(3);
    o.waits = !one_in(4);
    bool holds = o.contract_end == 1 && holds_at_few(o);
    ProofResult r = prove(packed(o));
    EXPECT_FALSE(r.proved() && !holds) << "accepted a broken program: " << print(packed(o));
    (holds ? right : wrong) += 1;
    proved += r.proved() ? 1 : 0;
  }
  printf("%d programs right for every size and table, %d of them proved so; %d wrong\n", right,
         proved, wrong);
  EXPECT_GT(proved, 0);
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace stretto::hidden_sizes_test
